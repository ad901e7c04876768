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
    values,    // terms of the sum that is v: value_terms
    rotate,    // q and k, after the projection
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

    ValueId qkv = kNoValue;                           // (tokens, 2 qk_width + head_width), the projection
    ValueId q = kNoValue, k = kNoValue;               // (tokens, qk_width)
    ValueId v = kNoValue;                             // (tokens, head_width)
    ValueId value_rows = kNoValue;                    // rows of config.value_table, once looked up
    std::vector<WeightedSum::Term> value_terms = {};  // the first is v or replaces it
    ValueId out = kNoValue;    // (tokens, head_width), after slot attend; at last the term of the stream
    double scale = 0;          // factor of q·k, complete after slot rotate
    AttentionOptions options;  // complete before slot layout

    // True if this rank computes all heads.
    bool is_whole() const { return heads.dimension == Dimension::all_heads; }
    // Columns of q or of k; of v or the output; of k and v; of q, k and v.
    Extent qk_width() const { return w.extents.head_width({all_of_qk()}, is_whole()); }
    Extent head_width() const { return w.extents.head_width({all_of_v()}, is_whole()); }
    Extent kv_width() const { return w.extents.head_width({all_of_qk(), all_of_v()}, is_whole()); }
    Extent qkv_width() const {
        return w.extents.head_width({all_of_qk(), all_of_qk(), all_of_v()}, is_whole());
    }
    int64_t qk_dim() const { return config.qk_dim(w.extents.width().size); }
    int64_t v_dim() const { return config.v_dim(w.extents.width().size); }
    ValueId head_rows(const std::string& name) const {
        return w.compute_value(name, w.extents.tokens(), head_width());
    }
    // Returns rows of config.value_table with the columns of v.
    ValueId rows_of_v(ValueId table_rows) const;

    // Runs `write` when the graph reaches the slot.
    void at(AttentionSlot slot, std::function<void()> write) { writes_[slot].push_back(std::move(write)); }
    void run(AttentionSlot slot) {
        for (const auto& write : writes_[slot]) write();
    }

  private:
    int64_t all_of_qk() const { return config.heads * qk_dim(); }
    int64_t all_of_v() const { return config.heads * v_dim(); }

    std::map<AttentionSlot, std::vector<std::function<void()>>> writes_;
};

}  // namespace speedrun
