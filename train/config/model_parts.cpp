#include "train/config/model_parts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/device/error.h"

namespace speedrun {

void InitConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "distribution of the initial values");
    v.field("value", value, "constant: each value; normal, uniform: the standard deviation", {-1e6, 1e6});
    v.field("by_fan_in", by_fan_in, "that deviation is divided by the root of the number of inputs");
    v.field(
        "by_depth", by_depth,
        "divides the deviation by the root of twice the number of layers, as for GPT-2's matrices into the stream");
}

void TableConfig::fields(FieldVisitor& v) {
    v.choice("rows", rows, "what the table has a row for; ngrams: for the hashes of the last tokens");
    init_field(v, "init", init, "its values at the start");
    v.field("max_ngram", max_ngram, "ngrams: the last 2, 3, ... so many tokens", {2, 16});
    v.field("num_rows", num_rows, "ngrams: rows of the table, which n-grams of the same hash share",
            {1, 1 << 24});
    v.choice(
        "hash", hash,
        "ngrams: which row an n-gram has. mixed: tokens before the document's start count as absent; products: of "
        "bigrams (max_ngram 2), ((36313*token) xor (27191*token before)) mod (num_rows - 1) in wrapping 32 bits, across "
        "documents, and the last row for the first token of a row");
    v.field(
        "sign_rows", sign_rows,
        "ngrams of hash products: their rows are multiplied by one of so many fixed rows of random signs, number "
        "(token xor token before) mod sign_rows; 0: by none",
        {0, 1 << 20});
    v.choice(
        "exchange", exchange,
        "what ranks send each other of its gradient. whole: all of it; rows: those that the tokens of a step have "
        "looked up, each to the ranks that step it, which pays where these are few; no bit depends on it in f32");
}

void TableConfig::validate(const std::string& key) const {
    const bool products = hash == NgramHash::products;
    if (products && (rows != TableRows::ngrams || max_ngram != 2))
        throw_usage("{}.hash: products is a hash of 2-grams, not of {}", key,
                    rows == TableRows::ngrams ? fmt::format("up to {}-grams", max_ngram)
                                              : std::string(word_of(rows)));
    if (products && num_rows < 2)
        throw_usage("{}.num_rows {}: hash products needs 2, of which the last is for first tokens", key,
                    num_rows);
    if (exchange == TableExchange::rows && rows == TableRows::positions)
        throw_usage("{}.exchange is rows, but every rank looks up all rows for positions; use whole", key);
    if (sign_rows > 0 && !products)
        throw_usage("{}.sign_rows {}: signs belong to ngrams of hash products", key, sign_rows);
}

void TableConfig::validate_tied(const std::string& name) const {
    if (exchange == TableExchange::rows)
        throw_usage(
            "model.tables.{0}.exchange is rows, but the head is tied to \"{0}\" (model.head.tied_to), and its gradient fills all "
            "rows; use whole",
            name);
}

void NormConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "what every norm of the stream computes");
    v.field("gain", gain, "norms multiply by a learned gain");
    v.field("bias", bias, "and add a learned bias");
    v.field(
        "epsilon", epsilon,
        "added to the mean square (layernorm: the variance) before its root is taken, in the norms of q and k too",
        {1e-20, 1});
}

void NetworkConfig::fields(FieldVisitor& v) {
    v.field(
        "input", input,
        "input of each token: \"first\" (x0, the output of model.input before its sums), \"input\" (the input of the first "
        "layer) or \"after 3\" (the output of layer 3)");
    v.field("hidden", hidden, "width between its two matrices", {1, kMaxNarrow});
    v.section("init", "its first matrix at the start; the second is zero",
              [this](FieldVisitor& s) { init.fields(s); });
    v.field("scale", scale, "what it computes is multiplied by this", {1e-6, 1e6});
    v.field("learned_scale", learned_scale,
            "a name makes the scale a learned number (networks.NAME), which networks of the same name share");
}

void StreamPartConfig::fields(FieldVisitor& v) {
    v.choice(
        "type", type,
        "table: add the rows of a table; smear: add the row of the token before, times a learned factor and a gate; norm: "
        "normalise; sum: the stream becomes the sum of the terms. Older types are sums: inject {\"type\": \"sum\", \"terms\": "
        "[{\"of\": \"stream\"}, {\"table\": NAME, \"scale\": 0}]}; terms of add and backout: {\"of\": \"after 3\", "
        "\"scale\": 0}. In model.input sums follow all other types, and x0 is the stream before them");
    v.field("table", table, "table: name");
    v.objects("terms", terms, "sum: its terms");
    v.field("start", start, "smear: initial value of the factor", {-1e6, 1e6});
    v.field("columns", columns, "smear: number of first columns of the row that the gate reads",
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
            "what q, k and v are made of, normed: \"after 3\" (what layer 3 gave), \"input\" or \"first\" "
            "(model.networks.NAME.input); empty: the stream, as everything else in the layer");
    v.field("bias", bias, "its linear layers have biases");
    v.field("scale", scale, "factor of q*k; 0: 1/sqrt(head size)", {0, 100});
    v.field("window", window,
            "keys that a query sees at most, itself included: a number, 0 for all, or a name "
            "of model.windows");
    v.field("value_table", value_table, "table of tokens that is mixed into v with two learned factors");
    v.field("value_start", value_start, "those factors at the start, and that of value_scale", {-1e6, 1e6});
    v.field(
        "value_scale", value_scale,
        "v is multiplied by a learned factor without a value_table, and with a value_gate; else with a table it has that "
        "anyway");
    v.objects("values", values, "added to v; \"stream\" is the stream before attention, not normed");
    v.retired("add_to_values", {"[]", "\"values\": [{\"of\": \"input\", \"scale\": 0}]"});
    parts.fields(v);
    init_field(v, "init", init, "matrix of q, k and v at the start");
    init_field(v, "out_init", out_init, "output matrix at the start");
    v.objects("after", after, kAfterHelp);
    v.retired("out_scale",
              {"0.0", "gain of a term of after: {\"of\": \"output\", \"scale\": 1, \"gain\": 1}"});
    v.retired("join", kJoinRetired);
}

void LayerConfig::fields(FieldVisitor& v) {
    v.objects("enter", enter, "sums before attention, each of the stream that the one before it wrote");
    v.retired("mix", {"null",
                      "\"enter\": [{\"terms\": [{\"of\": \"stream\", \"scale\": 1, \"name\": \"mix\"}, "
                      "{\"of\": \"first\", \"scale\": 0, \"name\": \"mix\"}]}]"});
    v.optional("attention", attention, "added to the stream: attention of the normed stream; null: none");
    v.optional("mlp", mlp, "then added: MLP of the normed stream; null: none");
}

void LayersConfig::fields(FieldVisitor& v) {
    v.field("count", count, "number of layers, those that are left out included", {1, 1000});
    v.section("each", "every layer, but for what `at` changes", [this](FieldVisitor& s) { each.fields(s); });
    v.section("at", "what is different in single layers: \"4,11\" or \"0-2\", counted from 0",
              [this](FieldVisitor& s) {
                  std::vector<std::string> known;
                  for (const LayersAt& entry : at) known.push_back(entry.numbers);
                  std::vector<LayersAt> read;
                  for (const std::string& key : s.own_keys(known)) {
                      const auto found = std::find_if(
                          at.begin(), at.end(), [&](const LayersAt& entry) { return entry.numbers == key; });
                      read.push_back(found == at.end() ? LayersAt{key, each} : *found);
                      s.optional(key.c_str(), read.back().layer,
                                 "parts of these layers; null: these layers are left out");
                  }
                  at = std::move(read);
              });
}

void ModelParts::fields(FieldVisitor& v) {
    v.section("tables", "matrices that tokens are looked up in, by name; parameters are NAME.weight",
              [this](FieldVisitor& s) {
                  read_own<TableConfig>(s, tables, [&](const std::string& key, TableConfig& table) {
                      s.section(key.c_str(), "a table", [&](FieldVisitor& inner) { table.fields(inner); });
                  });
              });
    v.section("windows", "names for windows of attention", [this](FieldVisitor& s) {
        read_own<Scheduled<int64_t>>(s, windows, [&](const std::string& key, Scheduled<int64_t>& keys) {
            s.field(key.c_str(), keys, "keys that a query sees at most, itself included; 0: all", {0, 1e9});
        });
    });
    v.section("networks",
              "small networks, by name, that compute numbers for each token: "
              "(W2 gelu(W1 u) + b) scale, of the numbers that name them",
              [this](FieldVisitor& s) {
                  read_own<NetworkConfig>(s, networks, [&](const std::string& key, NetworkConfig& network) {
                      s.section(key.c_str(), "a network",
                                [&](FieldVisitor& inner) { network.fields(inner); });
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
        if (table.rows == TableRows::ngrams)
            return {.max_ngram = table.max_ngram,
                    .num_rows = table.num_rows,
                    .hash = table.hash,
                    .sign_rows = table.sign_rows};
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
