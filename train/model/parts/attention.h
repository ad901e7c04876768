// Attention of a layer. A part of it is one optional trick, with its keys, checks, numbers of networks and graph in one class of
// this folder. The build lists these classes (train/fields/part_list.cmake).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/config/init_config.h"
#include "train/fields/part_set.h"
#include "train/model/parts/sum.h"

namespace speedrun {

class AttentionLayer;  // train/model/attention_layer.h
struct AttentionConfig;
struct ModelParts;

// Numbers that a network computes per token for one part.
struct TokenFactor {
    std::string network;  // empty: none computes them
    std::string name;     // name of the values, such as "attn.gate"
    double start;         // initial value of each number
    bool by_heads;        // one number per head; false: `count`
    int64_t count = 1;
    int order = 0;  // position among the numbers of a layer; equal ones follow the order of the keys
};

// Passed to the checks of a part.
struct AttentionScope {
    std::string key;  // key of the part, such as "model.layers, layer 3: attention.gate"
    const AttentionConfig& attention;
    const ModelParts& model;
    int64_t model_dim;

    int64_t head_pairs() const;  // pairs of dimensions per head
    // Throws a usage error for more columns than a row has.
    void check_columns(const std::string& field, int64_t columns) const;
};

// Keys and defaults of a class: see PartSet.
class AttentionPart {
  public:
    virtual ~AttentionPart() = default;
    // Throws a usage error, with key and values, if the part does not fit the attention.
    virtual void check(const AttentionScope& /*scope*/) const {}
    virtual std::vector<TokenFactor> numbers() const { return {}; }
    // True if each rank of the tensor axis has to compute all heads.
    virtual bool needs_all_heads() const { return false; }
    // True if ranks of the context axis cannot share rows.
    virtual bool needs_whole_rows() const { return false; }
    // Initial factor of the rows of AttentionConfig::value_table, if the part adds these to v.
    virtual std::optional<double> value_row_factor() const { return std::nullopt; }
    // Name of a window (ModelParts::windows): the graph of a stage depends on the sizes of this window so far. Empty: none.
    virtual std::string followed_window() const { return {}; }
    // Writes the graph: now, before the projection of queries, keys and values, and in later slots (AttentionLayer::at).
    virtual void build(AttentionLayer& layer) const = 0;
};

// The parts of one attention.
class AttentionParts : public PartSet<AttentionPart> {
  public:
    AttentionParts();  // the default ones

    // Null unless a part adds the rows of the value table to v.
    const AttentionPart* value_rows() const {
        for (const auto& [key, part] : all())
            if (part->value_row_factor()) return part.get();
        return nullptr;
    }
    // Declares the keys of all classes.
    void fields(FieldVisitor& v);
};

// Help text of keys that name a network.
inline constexpr const char* kNetworkHelp =
    "name in model.networks of the hyper-network (MUDD-like) that computes this value per token; "
    "empty: no network";

// x + O·attention(norm(u)); u is x or the place `reads` of the stream.
struct AttentionConfig {
    static constexpr double kValueStart = 0.5;
    static constexpr int64_t kMaxHeadDim = 4096;

    int64_t heads = 4;
    int64_t qk_head_dim = 0, v_head_dim = 0;  // 0: model_dim / heads
    std::string reads = {};                   // stream_place; empty: x
    bool bias = false;
    double scale = 0;
    std::string window = "0";
    std::string value_table = {};
    double value_start = kValueStart;
    bool value_scale = false;
    std::vector<SumTerm> values = {};  // added to v
    AttentionParts parts = {};
    InitConfig init{.type = InitKind::uniform, .value = 0.5, .by_fan_in = true};  // queries, keys, values
    InitConfig out_init = {};
    std::vector<SumTerm> after = {};  // empty: stream + output

    void fields(FieldVisitor& v);
    // Width of a head of q and k, and of v and the output.
    int64_t qk_dim(int64_t model_dim) const { return qk_head_dim > 0 ? qk_head_dim : model_dim / heads; }
    int64_t v_dim(int64_t model_dim) const { return v_head_dim > 0 ? v_head_dim : model_dim / heads; }
    // Throws a usage error, with key and values, for attention and parts that do not fit the model.
    void check(int64_t layer, const ModelParts& model, int64_t model_dim) const;
    void build(AttentionLayer& layer) const;

  private:
    void check_widths(const std::string& key, const ModelParts& model, int64_t model_dim) const;
};

// Returns the columns of a value table: the width of v in its widest reader, or model_dim if the output adds its
// rows. Other readers take the first columns of each head.
int64_t value_table_columns(const ModelParts& parts, const std::string& table, int64_t model_dim);

// Attention that the tensor axis does not cut by heads: each rank stores and computes all heads.
// Attention is whole if it mixes heads, or if it adds or reads columns of all heads. A value table is whole if such attention reads
// it or the output adds its rows; then all attention that reads the table is whole.
struct WholeAttention {
    std::map<int64_t, std::string> layers;  // reason, by layer
    std::set<std::string> tables;

    // Returns "attention of layers 0, 2 (paired), 1 (value_gate), table values", with layers grouped by reason.
    std::string describe() const;
};
WholeAttention whole_attention(const ModelParts& parts);

}  // namespace speedrun
