#include "train/config/model_parts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/device/error.h"

namespace speedrun {

void InitConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "distribution of the initial values");
    v.field("value", value, "value of each element (constant), or standard deviation (normal, uniform)",
            {-1e6, 1e6});
    v.field("by_fan_in", by_fan_in, "divide the standard deviation by the root of the number of inputs");
    v.field(
        "by_depth", by_depth,
        "divide the standard deviation by sqrt(2*layers), as GPT-2 does for output matrices of sublayers");
}

void NormConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "normalisation in every norm of the stream");
    v.field("gain", gain, "learned gain of each norm");
    v.field("bias", bias, "learned bias of each norm");
    v.field(
        "epsilon", epsilon,
        "term added to the mean square (layernorm: the variance) before the root, also in the norms of q and k",
        {1e-20, 1});
}

void NetworkConfig::fields(FieldVisitor& v) {
    v.field(
        "input", input,
        "input of each token: \"first\" (x0, the output of model.input before its sums), \"input\" (the input of the first "
        "layer) or \"after 3\" (the output of layer 3)");
    v.field("hidden", hidden, "width of the hidden layer", {1, kMaxNarrow});
    v.section("init", "initial first matrix; the second matrix starts at zero",
              [this](FieldVisitor& s) { init.fields(s); });
    v.field("scale", scale, "factor of the outputs", {1e-6, 1e6});
    v.field(
        "learned_scale", learned_scale,
        "name of a learned scalar (networks.NAME), initial value scale, shared by networks of equal name; "
        "empty: constant scale");
}

void StreamPartConfig::fields(FieldVisitor& v) {
    v.choice(
        "type", type,
        "operation on the stream; table: add rows of a table; smear: add the previous token's row, times learned factor and "
        "gate; norm: normalise; sum: replace the stream by the sum of terms. In model.input, sums follow all other types");
    v.field("table", table, "name of the table, for type table");
    v.objects("terms", terms, "terms of the sum, for type sum");
    v.field("start", start, "initial factor, for type smear", {-1e6, 1e6});
    v.field("columns", columns, "number of first columns of the row that the gate reads, for type smear",
            {1, kMaxNarrow});
    constexpr const char* kInTerms =
        "{\"type\": \"sum\", \"terms\": [{\"of\": \"after 3\", \"network\": NAME}]}";
    v.retired("of", {"\"\"", kInTerms});
    v.retired("network", {"\"\"", kInTerms});
    v.retired("layer", {"0", kInTerms});
}

void AttentionConfig::fields(FieldVisitor& v) {
    v.field("heads", heads, "number of heads; divides model.model_dim", {1, 1024});
    v.field("reads", reads,
            "input of q, k and v, before its norm: \"after 3\" (output of layer 3), \"input\" or \"first\" "
            "(model.networks.NAME.input); empty: the stream");
    v.field("bias", bias, "biases of the linear layers");
    v.field("scale", scale, "factor of q.k; 0: 1/sqrt(head size)", {0, 100});
    v.field("window", window,
            "largest number of keys per query, itself included: a number, 0 for all, or a name "
            "in model.windows");
    v.field("value_table", value_table,
            "table of tokens with value embeddings; v becomes a*v + b*row with learned a and b; empty: none");
    v.field("value_start", value_start, "initial factors of value_table and value_scale", {-1e6, 1e6});
    v.field(
        "value_scale", value_scale,
        "learned factor of v, without a value_table or with a value_gate; a value_table without a gate always has this "
        "factor");
    v.objects("values", values,
              "terms added to v; \"stream\" is the stream before attention and before its norm");
    v.retired("add_to_values", {"[]", "\"values\": [{\"of\": \"input\", \"scale\": 0}]"});
    parts.fields(v);
    init_field(v, "init", init, "initial matrix of q, k and v");
    init_field(v, "out_init", out_init, "initial output matrix");
    v.objects("after", after, kAfterHelp);
    v.retired("out_scale",
              {"0.0", "gain of a term of after: {\"of\": \"output\", \"scale\": 1, \"gain\": 1}"});
    v.retired("join", kJoinRetired);
}

void LayerConfig::fields(FieldVisitor& v) {
    v.objects("enter", enter, "sums before attention, in order; each one replaces the stream");
    v.retired("mix", {"null",
                      "\"enter\": [{\"terms\": [{\"of\": \"stream\", \"scale\": 1, \"name\": \"mix\"}, "
                      "{\"of\": \"first\", \"scale\": 0, \"name\": \"mix\"}]}]"});
    v.optional("attention", attention, "attention of the normed stream, added to the stream; null: none");
    v.optional("mlp", mlp, "MLP of the normed stream, added to the stream after attention; null: none");
}

void LayersConfig::fields(FieldVisitor& v) {
    v.field("count", count, "number of layers, including removed layers (at: null)", {1, 1000});
    v.section("each", "every layer, with the changes of `at`", [this](FieldVisitor& s) { each.fields(s); });
    v.section("at", "changes to single layers, by their numbers from 0, such as \"4,11\" or \"0-2\"",
              [this](FieldVisitor& s) {
                  std::vector<std::string> known;
                  for (const LayersAt& entry : at) known.push_back(entry.numbers);
                  std::vector<LayersAt> read;
                  for (const std::string& key : s.own_keys(known)) {
                      const auto found = std::find_if(
                          at.begin(), at.end(), [&](const LayersAt& entry) { return entry.numbers == key; });
                      read.push_back(found == at.end() ? LayersAt{key, each} : *found);
                      s.optional(key.c_str(), read.back().layer,
                                 "parts of these layers; null: removes the layers");
                  }
                  at = std::move(read);
              });
}

void ModelParts::fields(FieldVisitor& v) {
    v.section("tables", "embedding tables by name; parameters are NAME.weight", [this](FieldVisitor& s) {
        read_own<TableConfig>(s, tables, [&](const std::string& key, TableConfig& table) {
            s.section(key.c_str(), "a table", [&](FieldVisitor& inner) { table.fields(inner); });
        });
    });
    v.section("windows", "attention windows by name", [this](FieldVisitor& s) {
        read_own<Scheduled<int64_t>>(s, windows, [&](const std::string& key, Scheduled<int64_t>& keys) {
            s.field(key.c_str(), keys, "largest number of keys per query, itself included; 0: all", {0, 1e9});
        });
    });
    v.section(
        "networks",
        "hyper-networks (MUDD-like) by name, which compute scalars per token for the parts that name them: "
        "(W2 gelu(W1 u) + b) scale",
        [this](FieldVisitor& s) {
            read_own<NetworkConfig>(s, networks, [&](const std::string& key, NetworkConfig& network) {
                s.section(key.c_str(), "a network", [&](FieldVisitor& inner) { network.fields(inner); });
            });
        });
    v.section("norms", "the norms of the stream", [this](FieldVisitor& s) { norms.fields(s); });
    v.objects("input", input,
              "operations on the rows before the first layer, in order; the first is a table of tokens");
    v.section("layers", "the layers", [this](FieldVisitor& s) { layers.fields(s); });
    v.objects("output", output, "operations after the last layer, in order");
    v.retired("skips", {"[]",
                        "a sum of the later layer, \"enter\": [{\"terms\": [{\"of\": \"stream\"}, "
                        "{\"of\": \"after 3\", \"gate\": -1.5}]}]"});
    v.section("head", "logits", [this](FieldVisitor& s) { head.fields(s); });
    v.section("loss", "cross entropy", [this](FieldVisitor& s) { loss.fields(s); });
}

const TableConfig* ModelParts::find_table(const std::string& name) const {
    for (const auto& [known, table] : tables)
        if (known == name) return &table;
    return nullptr;
}

NgramTable ModelParts::ngram_table() const {
    for (const auto& [name, table] : tables)
        if (table.rows == TableRows::ngrams) return table.ngrams;
    return {};
}

std::vector<int64_t> ModelParts::past_of(const std::string& window) const {
    for (const auto& [name, sizes] : window_past)
        if (name == window) return sizes;
    return {};
}

bool ModelParts::has_positions() const {
    for (const auto& [name, table] : tables)
        if (table.rows == TableRows::positions) return true;
    return false;
}

int64_t ModelParts::num_layers() const {
    int64_t count = 0;
    for (const auto& layer : layers.resolved()) count += layer ? 1 : 0;
    return count;
}

bool ModelParts::uses_fp8() const {
    bool uses = head.fp8.has_value();
    for (const auto& layer : layers.resolved()) uses |= layer && layer->mlp && layer->mlp->uses_fp8();
    return uses;
}

}  // namespace speedrun
