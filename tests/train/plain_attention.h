// Attention-only model, forward in float64, by loops over tokens, heads and keys. It shares no tensor and no
// operation with the tested model.
#pragma once

#include "tests/train/model_harness.h"
#include "train/model/parts/compose_heads.h"
#include "train/model/parts/exclude_own_value.h"
#include "train/model/parts/key_offset.h"
#include "train/model/parts/paired_heads.h"
#include "train/model/parts/rotary.h"

namespace speedrun::testing {

class PlainModel {
  public:
    // Layers of attention without mix, gate or MLP. Input: one token table. Output: a norm, and logits without
    // softcap. Parameters by name.
    PlainModel(const ModelConfig& model, const HostBatch& batch, int64_t sequence_length)
        : model_(model), parts_(model.parts), batch_(batch), sequence_length_(sequence_length) {}

    std::map<std::string, Values> parameters;

    Values losses() const;  // per token

  private:
    struct Layer {
        const AttentionConfig& config;
        int64_t number, window, heads, dim, dim_of_v;  // window 0: none; dim: of q and k
        template <class T>
        bool has() const {
            return config.parts.find<T>() != nullptr;
        }
        template <class T>
        const T& part() const {
            return *config.parts.find<T>();
        }
    };
    struct Rows {
        std::vector<Values> q, k, v;  // per token
    };
    const Values& weight(const std::string& name) const { return parameters.at(name); }
    const Values& weight(const Layer& layer, const std::string& name) const;
    Values normed(const Values& x) const;
    // Normalises the heads of a token and applies rotary.
    void turn(const Layer& layer, int64_t token, Values& heads) const;
    Rows project(const Layer& layer, const std::vector<Values>& stream) const;
    double key_at(const Layer& layer, const Rows& rows, int64_t token, int64_t column) const;
    // Output of one head at a token.
    Values attend(const Layer& layer, const Rows& rows, int64_t token, int64_t head) const;
    // Attention weights of one head at a token, for the keys from `first` to the token itself.
    Values weights_of(const Layer& layer, const Rows& rows, int64_t token, int64_t head, int64_t first) const;
    // Adds the composed maps of all heads to one head's output.
    void compose(const Layer& layer, const Rows& rows, int64_t token, int64_t head, Values& out) const;
    void exclude_own_value(const Layer& layer, const Values& v, int64_t head, Values& out) const;

    const ModelConfig& model_;
    const ModelParts parts_;
    const HostBatch& batch_;
    const int64_t sequence_length_;
};

}  // namespace speedrun::testing
