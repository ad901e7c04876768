// Attention of one layer while its graph is written, and the order in which its parts write.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "train/model/layers.h"
#include "train/model/nodes/attention.h"

namespace speedrun {

// Slots in the order of the graph. Parts of one slot write in the order in which they were built.
enum class AttentionSlot : uint8_t {
    rotate,    // q and k, after the projection
    values,    // terms of the sum that is v: value_terms
    keys,      // k, after rotary and norm
    layout,    // q, k and v in memory
    before,    // nodes with a backward after that of attention
    attend,    // a replacement of plain attention: sets out
    attended,  // the sum of other attention and out
    output,    // changes of out, before its projection
};

struct AttentionContext {
    GraphWriter& w;
    Networks& networks;
    TokenTables& tables;
    const ModelParts& model;
    const AttentionConfig& config;
    const int64_t layer;
    const Extent heads;    // heads of this rank; all heads if the layer is whole (WholeAttention)
    const ValueId normed;  // input of the projection, all tokens
    const ValueId addend;  // the stream, if it is added to the product of the last matrix, or kNoValue
    const std::vector<WeightedSum::Term> added_to_values;  // rows of the stream
    const bool documents;                                  // ModelOptions::documents
};

class AttentionLayer : public AttentionContext {
  public:
    explicit AttentionLayer(AttentionContext context) : AttentionContext(std::move(context)) {}

    ValueId qkv = kNoValue;                            // (tokens, 3 head_width), the projection
    ValueId q = kNoValue, k = kNoValue, v = kNoValue;  // (tokens, head_width)
    ValueId value_rows = kNoValue;                     // rows of config.value_table, once looked up
    std::vector<WeightedSum::Term> value_terms = {};   // the first is v or replaces it
    ValueId out = kNoValue;    // (tokens, head_width), after slot attend; at last the term of the stream
    double scale = 0;          // factor of q·k, complete after slot rotate
    AttentionOptions options;  // complete before slot layout

    // True if this rank computes all heads.
    bool is_whole() const { return heads.dimension == Dimension::all_heads; }
    Extent head_width(int64_t times = 1) const {
        return is_whole() ? w.extents.whole_head_width(times) : w.extents.head_width(times);
    }
    int64_t head_dim() const { return head_width().size / heads.size; }
    ValueId head_rows(const std::string& name) const {
        return w.compute_value(name, w.extents.tokens(), head_width());
    }

    // Runs `write` when the graph reaches the slot.
    void at(AttentionSlot slot, std::function<void()> write) { writes_[slot].push_back(std::move(write)); }
    void run(AttentionSlot slot) {
        for (const auto& write : writes_[slot]) write();
    }

  private:
    std::map<AttentionSlot, std::vector<std::function<void()>>> writes_;
};

}  // namespace speedrun
