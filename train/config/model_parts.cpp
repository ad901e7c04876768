#include "train/config/model_parts.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/config/suggestion.h"

namespace speedrun {

namespace {

template <class T>
std::set<std::string> names_of(const std::vector<std::pair<std::string, T>>& entries) {
    std::set<std::string> names;
    for (const auto& [name, value] : entries) names.insert(name);
    return names;
}

// Returns the text as a number; nullopt if other characters remain.
std::optional<int64_t> number_of(const std::string& text) {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || number < 0) return std::nullopt;
    return number;
}

// Returns the numbers of a text such as "4,11" or "0-2,7".
std::vector<int64_t> numbers_of(const std::string& text, int64_t count) {
    std::vector<int64_t> numbers;
    size_t at = 0;
    while (at <= text.size()) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string piece = text.substr(at, end - at);
        const size_t dash = piece.find('-');
        const auto first = number_of(piece.substr(0, dash));
        const auto last = dash == std::string::npos ? first : number_of(piece.substr(dash + 1));
        if (!first || !last || *last < *first || *last >= count) {
            throw_usage(
                "model.layers.at.{}: expected numbers of layers from 0 to {}, such as \"0\", \"1,3\" or \"0-2\"",
                shown_key<nlohmann::json>(text), count - 1);
        }
        for (int64_t number = *first; number <= *last; ++number) numbers.push_back(number);
        at = end + 1;
    }
    return numbers;
}

}  // namespace

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

std::vector<std::optional<LayerConfig>> LayersConfig::resolved() const {
    std::vector<std::optional<LayerConfig>> layers(static_cast<size_t>(count), each);
    std::vector<const LayersAt*> named(layers.size());
    for (const LayersAt& entry : at) {
        for (const int64_t number : numbers_of(entry.numbers, count)) {
            const LayersAt*& before = named[static_cast<size_t>(number)];
            if (before)
                throw_usage("model.layers.at: layer {} is in \"{}\" and in \"{}\"", number, before->numbers,
                            entry.numbers);
            before = &entry;
            layers[static_cast<size_t>(number)] = entry.layer;
        }
    }
    for (auto& layer : layers)
        if (layer && layer->empty()) layer.reset();
    return layers;
}

int64_t ModelParts::window_of(const AttentionConfig& attention, int64_t layer) const {
    for (const auto& [name, keys] : windows)
        if (name == attention.window) return keys;
    if (const auto number = number_of(attention.window)) return *number;
    throw_usage("model.layers, layer {}: attention.window: no window \"{}\" in model.windows{}", layer,
                attention.window, suggestion(attention.window, names_of(windows)));
}

void ModelParts::validate(int64_t model_dim) const {
    check_stream(*this, model_dim);
    const auto all = layers.resolved();
    if (std::none_of(all.begin(), all.end(), [](const auto& layer) { return layer.has_value(); }))
        throw_usage("model.layers: all {} are removed", all.size());
    for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i]) continue;
        if (all[i]->attention) all[i]->attention->check(static_cast<int64_t>(i), *this, model_dim);
        if (all[i]->mlp) all[i]->mlp->check(fmt::format("model.layers, layer {}: mlp", i), model_dim);
    }
    check_tables(*this);
    check_sums(*this);
    check_networks(*this);
    loss.check();
    head.check(model_dim);
}

}  // namespace speedrun
