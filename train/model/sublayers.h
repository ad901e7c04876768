// What a layer adds to the stream: attention and MLP.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "train/config/whole_attention.h"
#include "train/model/networks.h"
#include "train/model/nodes/attention.h"
#include "train/model/nodes/key_travel.h"
#include "train/model/token_tables.h"

namespace speedrun {

class Sublayers {
  public:
    Sublayers(GraphWriter& writer, const ModelParts& parts, TokenTables& tables, Networks& networks,
              const WholeAttention& whole, const ModelOptions& options)
        : w_(writer), parts_(parts), tables_(tables), networks_(networks), whole_(whole), options_(options) {}

    // Attention in the layer of this number.
    struct AttentionInput {
        ValueId normed;                                  // of all tokens
        std::vector<WeightedSum::Term> added_to_values;  // values of the stream
    };
    ValueId attention(int64_t layer, const AttentionConfig& config, const AttentionInput& x);
    ValueId mlp(const MlpConfig& config, ValueId normed);

  private:
    // Angles for one frequency per pair of a head's dimensions; layers that agree in all share them. paired: of twice as
    // many positions.
    const RotaryTables& rotary_tables(const std::vector<double>& frequencies, bool paired);
    struct Projected {
        ValueId q, k, v;
    };
    // Does this rank compute all heads of the attention at hand (WholeAttention)? Else those of its part.
    bool is_whole() const { return heads_.dimension == Dimension::all_heads; }
    Extent head_width(int64_t times = 1) const {
        return is_whole() ? w_.whole_head_width(times) : w_.head_width(times);
    }
    // What is added to values, for attention that has all tokens.
    std::vector<WeightedSum::Term> of_all_tokens(const std::vector<WeightedSum::Term>& terms);
    // Attention of these, over the keys of other ranks too where the batch is a part of rows.
    ValueId attend(const Projected& x, AttentionOptions how);
    ValueId with_key_offset(ValueId k, int64_t turning_pairs);
    // Gates of rows that are added to values, of heads or of their halves.
    ValueId value_gate(const ValueGateConfig& config, ValueId normed, ValueId rows);
    // The values of each head, seen through a mix of all heads' maps.
    ValueId compose_heads(const ComposeHeadsConfig& config, const Projected& x, const AttentionOptions& how);
    // The output of attention without what lies along v.
    struct OutputAndValue {
        ValueId out, v;
    };
    ValueId without_own_value(const ExcludeOwnValueConfig& config, const OutputAndValue& x);
    // Heads j and j + H/2 as one over rows of twice the length, in which they take turns.
    ValueId attend_in_pairs(const Projected& x, AttentionOptions how);
    ValueId without_gaps(ValueId x);  // in memory of its own
    const PairedRows& paired_rows();  // made once
    // The places for a window, made once.
    const KeyPlaces& key_places(int64_t window);

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    Networks& networks_;
    const WholeAttention& whole_;
    const ModelOptions options_;
    Extent heads_{};  // of the attention at hand
    std::map<std::pair<std::vector<double>, bool>, RotaryTables> rotary_;
};

}  // namespace speedrun
