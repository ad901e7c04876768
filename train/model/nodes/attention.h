// Attention, and what is done to queries, keys and values before it.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

struct RotaryTables {
    ValueId cos = kNoValue, sin = kNoValue;  // constants (positions, half_head)
    ValueId positions = kNoValue;            // ids
    std::string described = {};              // what is unusual about them, for people
};

// Queries and keys RMS-normalised per head and rotated by their position, in place (op::QkNormRotaryForward).
class QkNormRotary final : public Node {
  public:
    struct Ports {
        ValueId q, k;  // views of projected_q and projected_k
        ValueId rstd;  // f32 (tokens, 2 × heads)
        ValueId projected_q, projected_k;
        RotaryTables tables = {};
    };
    QkNormRotary(const Ports& ports, const RotaryOptions& options);
    const char* kind() const override { return "QK-norm, rotary"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override { enqueue(call, {}); }
    // With a mix of values in the same operation.
    void enqueue(const Call& call, const ValueMix& value) const;
    void backward(const Call& call) const override;
    ValueId q() const { return value_of(q_); }

  private:
    const Out q_, k_, rstd_;
    const In projected_q_, projected_k_, cos_, sin_, positions_;
    const RotaryOptions options_;
    const std::string angles_;
};

class Attention final : public Node {
  public:
    struct Ports {
        ValueId out;               // (tokens, head_width)
        ValueId lse;               // f32 (heads, tokens)
        ValueId q, k, v;           // (tokens, head_width); with place, k and v (keys, head_width)
        ValueId first_key;         // ids (tokens)
        ValueId place = kNoValue;  // ids (tokens): of each query among the keys of its row
    };
    Attention(const Ports& ports, const AttentionOptions& options);
    const char* kind() const override { return "attention"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out out_, lse_;
    const In q_, k_, v_, first_key_, place_;
    const AttentionOptions options_;
};

}  // namespace speedrun
