// Attention of a layer: the operations common to all kinds of attention.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "train/config/whole_attention.h"
#include "train/model/layers.h"
#include "train/model/networks.h"
#include "train/model/nodes/attention.h"
#include "train/model/nodes/key_travel.h"

namespace speedrun {

class AttentionLayer;

class AttentionWriter {
  public:
    AttentionWriter(GraphWriter& writer, const ModelParts& parts, TokenTables& tables, Networks& networks,
                    const WholeAttention& whole, const ModelOptions& options)
        : w_(writer), parts_(parts), tables_(tables), networks_(networks), whole_(whole), options_(options) {}

    struct Input {
        ValueId normed;                                  // (tokens, width)
        std::vector<WeightedSum::Term> added_to_values;  // rows of the stream
    };
    // Writes the attention of this layer and returns its term of the stream.
    ValueId write(int64_t layer, const AttentionConfig& config, const Input& x);

  private:
    struct Projected {
        ValueId q, k, v;
    };
    // True if this rank computes all heads of the current attention (WholeAttention).
    bool is_whole() const { return heads_.dimension == Dimension::all_heads; }
    Extent head_width(int64_t times = 1) const {
        return is_whole() ? w_.extents.whole_head_width(times) : w_.extents.head_width(times);
    }
    // Returns terms with all tokens, as attention reads them.
    std::vector<WeightedSum::Term> of_all_tokens(const std::vector<WeightedSum::Term>& terms);
    // Returns plain attention. In a context part the keys of other ranks are included.
    ValueId attend(const Projected& x, AttentionOptions how);
    // Makes v the sum of its terms. mixed: a·v + b·row of the value table.
    void add_values(AttentionLayer& a, bool mixed, const std::vector<WeightedSum::Term>& added);

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    Networks& networks_;
    const WholeAttention& whole_;
    const ModelOptions options_;
    Extent heads_{};  // heads of the current attention
};

}  // namespace speedrun
