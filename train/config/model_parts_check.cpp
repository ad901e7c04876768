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

class PartsCheck {
  public:
    PartsCheck(const ModelParts& parts, int64_t model_dim)
        : parts_(parts), model_dim_(model_dim), layers_(parts.layers.resolved()) {}

    void run() {
        check_input();
        if (std::none_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer.has_value(); }))
            throw_usage("model.layers: all {} are removed", layers_.size());
        for (size_t i = 0; i < layers_.size(); ++i)
            if (layers_[i]) check_layer(*layers_[i], i);
        check_output();
        check_tables(parts_);
        check_sums(parts_);
        check_networks(parts_);
        parts_.loss.check();
        parts_.head.check(model_dim_);
    }

  private:
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
        for (size_t i = 0; i < parts_.input.size(); ++i) {
            const StreamPartConfig& part = parts_.input[i];
            const std::string key = fmt::format("model.input[{}]", i);
            if (part.type == StreamPart::smear) check_columns(key + ".columns", part.columns);
            if (i > 0 && part.type != StreamPart::sum && parts_.input[i - 1].type == StreamPart::sum)
                throw_usage("{}: {} after a sum: sums follow all other types", key, word_of(part.type));
            if (i == 0 && part.type != StreamPart::table)
                throw_usage("{}: begin with a table of tokens", key);
        }
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
