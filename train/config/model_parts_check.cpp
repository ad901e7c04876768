#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "kernels/ops/ops.h"
#include "train/config/model_parts.h"
#include "train/config/network_numbers.h"
#include "train/config/suggestion.h"

namespace speedrun {

namespace {

constexpr const char* kNameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";

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

// Records the tables that parts read.
class TableUses {
  public:
    explicit TableUses(const ModelParts& parts) : parts_(parts) {}

    const TableConfig& use(const std::string& key, const std::string& name) {
        const TableConfig* const table = parts_.find_table(name);
        if (!table)
            throw_usage("{}: no table \"{}\" in model.tables{}", key, name,
                        suggestion(name, names_of(parts_.tables)));
        used_.insert(name);
        return *table;
    }
    void expect_tokens(const std::string& key, const std::string& name) {
        const TableConfig& table = use(key, name);
        if (table.rows != TableRows::tokens)
            throw_usage("{}: table \"{}\" has rows for {}, rows for tokens are needed", key, name,
                        word_of(table.rows));
    }
    void expect_all_used() const {
        for (const auto& [name, table] : parts_.tables)
            if (!used_.count(name))
                throw_usage("model.tables.{}: nothing reads it (model.input, attention.value_table, sums)",
                            name);
    }

  private:
    const ModelParts& parts_;
    std::set<std::string> used_;
};

class PartsCheck {
  public:
    PartsCheck(const ModelParts& parts, int64_t model_dim)
        : parts_(parts), model_dim_(model_dim), layers_(parts.layers.resolved()), uses_(parts) {}

    void run() {
        check_names();
        check_tables();
        check_input();
        if (std::none_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer.has_value(); }))
            throw_usage("model.layers: all {} are removed", layers_.size());
        for (const Sum& sum : sums_of(parts_))
            for (size_t i = 0; i < sum.terms.size(); ++i)
                check_table(fmt::format("{}[{}].table", sum.key, i), sum, sum.terms[i].table);
        for (size_t i = 0; i < layers_.size(); ++i)
            if (layers_[i]) check_layer(*layers_[i], i);
        check_output();
        check_sums(parts_);
        check_networks(parts_);
        parts_.loss.check();
        parts_.head.check(model_dim_);
        if (!parts_.head.tied_to.empty()) {
            uses_.expect_tokens("model.head.tied_to", parts_.head.tied_to);
            parts_.find_table(parts_.head.tied_to)->validate_tied(parts_.head.tied_to);
            if (value_tables_.count(parts_.head.tied_to))
                throw_usage("model.head.tied_to: table \"{}\" is a value_table too", parts_.head.tied_to);
        }
        uses_.expect_all_used();
    }

  private:
    void check_names() const {
        std::set<std::string> seen;
        for (const auto& [name, table] : parts_.tables) {
            if (name.empty() || name.size() > 60 || name.find_first_not_of(kNameLetters) != std::string::npos)
                throw_usage("model.tables: \"{}\" is no name: letters, digits, _ and . are",
                            shown_key<nlohmann::json>(name));
            for (const char* taken : {"blocks", "head", "smear", "input", "output", "final_norm", "networks"})
                if (name == taken || name.rfind(std::string(taken) + ".", 0) == 0)
                    throw_usage("model.tables.{}: parameters of that name belong to the model", name);
        }
    }

    // Nodes of one kind in one place share a name, so at most one is possible.
    static void expect_one(const char* key, const std::vector<StreamPartConfig>& parts, StreamPart type) {
        int64_t count = 0;
        for (size_t i = 0; i < parts.size(); ++i)
            if (parts[i].type == type && ++count > 1)
                throw_usage("model.{}[{}]: a second {}, at most one is possible", key, i, word_of(type));
    }

    void check_input() {
        for (const StreamPart type : {StreamPart::norm, StreamPart::smear})
            expect_one("input", parts_.input, type);
        if (parts_.input.empty()) throw_usage("model.input is empty: begin with a table of tokens");
        int64_t positions = 0;
        for (size_t i = 0; i < parts_.input.size(); ++i) {
            const StreamPartConfig& part = parts_.input[i];
            const std::string key = fmt::format("model.input[{}]", i);
            if (part.type == StreamPart::smear) check_columns(key + ".columns", part.columns);
            if (i > 0 && part.type != StreamPart::sum && parts_.input[i - 1].type == StreamPart::sum)
                throw_usage("{}: {} after a sum: sums follow all other types", key, word_of(part.type));
            if (part.type != StreamPart::table) {
                if (i == 0) throw_usage("{}: begin with a table of tokens", key);
                continue;
            }
            const TableConfig& table = uses_.use(key + ".table", part.table);
            if (!input_tables_.insert(part.table).second)
                throw_usage("{}.table: \"{}\" is added twice", key, part.table);
            if (i == 0 && table.rows != TableRows::tokens)
                throw_usage("{}.table: \"{}\" has rows for {}: begin with a table of tokens", key, part.table,
                            word_of(table.rows));
            positions += table.rows == TableRows::positions ? 1 : 0;
        }
        if (positions > 1) throw_usage("model.input: {} tables of positions, at most one is read", positions);
    }

    void check_tables() const {
        int64_t ngrams = 0;
        for (const auto& [name, table] : parts_.tables) {
            table.validate("model.tables." + name);
            ngrams += table.rows == TableRows::ngrams ? 1 : 0;
        }
        if (ngrams > 1) throw_usage("model.tables: {} tables of ngrams, at most one is read", ngrams);
    }

    // Tables of sums of the stream have one row per token and no other reader. Tables of output sums may also be value tables.
    void check_table(const std::string& key, const Sum& sum, const std::string& name) {
        if (name.empty()) return;
        if (sum.slot == SumSlot::output) return uses_.expect_tokens(key, name);
        const TableConfig& table = uses_.use(key, name);
        if (table.rows == TableRows::positions || (table.rows == TableRows::ngrams && table.max_ngram != 2))
            throw_usage("{}: table \"{}\" has rows for {}: a sum reads one for each token or 2-gram", key,
                        name,
                        table.rows == TableRows::positions ? std::string(word_of(table.rows))
                                                           : fmt::format("up to {}-grams", table.max_ngram));
        if (input_tables_.count(name))
            throw_usage("{}: \"{}\" is in model.input as a table, which adds it already", key, name);
        summed_tables_.insert(name);
    }

    void check_layer(const LayerConfig& layer, size_t number) {
        const std::string key = fmt::format("model.layers, layer {}: ", number);
        if (layer.attention) check_attention(*layer.attention, number);
        if (layer.mlp) layer.mlp->check(key + "mlp", model_dim_);
    }

    void check_attention(const AttentionConfig& attention, size_t layer) {
        const std::string key = fmt::format("model.layers, layer {}: attention", layer);
        if (model_dim_ % attention.heads != 0)
            throw_usage("{}.heads {} does not divide model.model_dim {}", key, attention.heads, model_dim_);
        for (const auto& [name, part] : attention.parts.all())
            part->check(
                {.key = key + "." + name, .attention = attention, .model = parts_, .model_dim = model_dim_});
        parts_.window_of(attention, static_cast<int64_t>(layer));
        if (!attention.reads.empty())
            earlier_place(key + ".reads", attention.reads, static_cast<int64_t>(layer), layers_);
        if (attention.value_table.empty()) return;
        uses_.expect_tokens(key + ".value_table", attention.value_table);
        if (input_tables_.count(attention.value_table))
            throw_usage("{}.value_table: \"{}\" is in model.input too", key, attention.value_table);
        if (summed_tables_.count(attention.value_table))
            throw_usage("{}.value_table: \"{}\" is a term of a sum too", key, attention.value_table);
        value_tables_.insert(attention.value_table);
    }

    void check_columns(const std::string& key, int64_t columns) const {
        if (columns > model_dim_) throw_usage("{} {} exceeds model.model_dim {}", key, columns, model_dim_);
    }

    void check_output() {
        expect_one("output", parts_.output, StreamPart::norm);
        for (size_t i = 0; i < parts_.output.size(); ++i) {
            const StreamPartConfig& part = parts_.output[i];
            const std::string key = fmt::format("model.output[{}]", i);
            if (part.type == StreamPart::table || part.type == StreamPart::smear)
                throw_usage("{}: {} is for model.input", key, word_of(part.type));
        }
    }

    const ModelParts& parts_;
    const int64_t model_dim_;
    const std::vector<std::optional<LayerConfig>> layers_;
    TableUses uses_;
    std::set<std::string> input_tables_, summed_tables_, value_tables_;
};

}  // namespace

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
    PartsCheck(*this, model_dim).run();
}

}  // namespace speedrun
