#include "train/config/network_numbers.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "kernels/device/error.h"
#include "train/config/suggestion.h"
#include "train/config/whole_attention.h"

namespace speedrun {

namespace {

constexpr const char* kNetworkLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

class NumbersOfNetworks {
  public:
    explicit NumbersOfNetworks(const ModelParts& parts) : whole_(whole_attention(parts)) {
        const auto layers = parts.layers.resolved();
        for (const Sum& sum : sums_of(parts)) {
            layer_ = sum.layer;
            prefix_ = sum.in_layer() ? fmt::format("blocks.{}.", layer_) : "";
            if (sum.slot == SumSlot::values) note_parts(*layers[static_cast<size_t>(layer_)]->attention);
            for (size_t i = 0; i < sum.terms.size(); ++i)
                note(sum.terms[i].network, {.name = scale_name(sum.slot, sum.terms[i]),
                                            .key = fmt::format("{}[{}].network", sum.key, i),
                                            .start = sum.terms[i].scale.value_or(0)});
        }
        std::stable_partition(numbers_.begin(), numbers_.end(),
                              [](const NetworkNumbers& numbers) { return !numbers.by_heads; });
    }
    std::vector<NetworkNumbers> take() { return std::move(numbers_); }

  private:
    using Reader = NetworkNumbers::Reader;
    struct Asked {
        std::string name, key;
        double start;
        int64_t heads = 0, count = 1;
        bool attention = false;  // true: attention reads the numbers
    };
    void note(const std::string& network, const Asked& asked) {
        if (network.empty()) return;
        numbers_.push_back({.network = network,
                            .name = prefix_ + asked.name,
                            .key = asked.key,
                            .layer = layer_,
                            .count = std::max<int64_t>({asked.heads, asked.count, 1}),
                            .start = asked.start,
                            .by_heads = asked.heads > 0,
                            .reader = asked.attention ? reader_in_attention() : Reader::stream});
    }
    NetworkNumbers::Reader reader_in_attention() const {
        return whole_.layers.count(layer_) > 0 ? Reader::whole_attention : Reader::heads;
    }
    void note_parts(const AttentionConfig& attention) {
        std::vector<std::pair<std::string, TokenNumber>> numbers;  // key of the part, number
        for (const auto& [key, part] : attention.parts.all())
            for (const TokenNumber& number : part->numbers()) numbers.emplace_back(key, number);
        std::stable_sort(numbers.begin(), numbers.end(),
                         [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
        for (const auto& [key, number] : numbers)
            note(number.network,
                 {.name = number.name,
                  .key = fmt::format("model.layers, layer {}: attention.{}.network", layer_, key),
                  .start = number.start,
                  .heads = number.by_heads ? attention.heads : 0,
                  .count = number.count,
                  .attention = true});
    }

    const WholeAttention whole_;
    int64_t layer_ = 0;
    std::string prefix_;  // "blocks.3."
    std::vector<NetworkNumbers> numbers_;
};

void expect_layer(const std::string& key, const std::string& text, const StreamPlace& place,
                  const std::vector<std::optional<LayerConfig>>& layers) {
    if (place.after < 0) return;
    if (place.after >= static_cast<int64_t>(layers.size()))
        throw_usage("{} \"{}\": there are layers 0 to {}", key, text, layers.size() - 1);
    if (!layers[static_cast<size_t>(place.after)])
        throw_usage("{} \"{}\": this layer is removed (model.layers.at)", key, text);
}

void check_network_name(const std::string& key, const std::string& name) {
    if (name.empty() || name.size() > 60 || name.find_first_not_of(kNetworkLetters) != std::string::npos)
        throw_usage("{}: \"{}\" is no name: letters, digits and _ are", key, name);
}

}  // namespace

StreamPlace stream_place(const std::string& key, const std::string& text) {
    if (text == "first") return {StreamPlace::kFirst};
    if (text == "input") return {StreamPlace::kInput};
    constexpr std::string_view kAfter = "after ";
    int64_t layer = -1;
    if (text.starts_with(kAfter)) {
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + kAfter.size(), end, layer);
        if (error == std::errc() && rest == end && layer >= 0) return {layer};
    }
    throw_usage(
        "{}: \"{}\" is no place of the stream: \"first\", \"input\" and \"after 3\" (or another layer) are",
        key, text);
}

StreamPlace earlier_place(const std::string& key, const std::string& text, int64_t layer,
                          const std::vector<std::optional<LayerConfig>>& layers) {
    const StreamPlace place = stream_place(key, text);
    expect_layer(key, text, place, layers);
    if (place.after >= layer)
        throw_usage("{} \"{}\": {} precedes this place", key, text,
                    layer < 0 ? "model.input" : fmt::format("layer {}", layer));
    return place;
}

std::vector<NetworkNumbers> network_numbers(const ModelParts& parts) {
    return NumbersOfNetworks(parts).take();
}

void check_networks(const ModelParts& parts) {
    std::set<std::string> names;
    for (const auto& [name, network] : parts.networks) names.insert(name);
    std::map<std::string, int64_t> counts;
    const std::vector<NetworkNumbers> all = network_numbers(parts);
    for (const NetworkNumbers& numbers : all) {
        if (!names.count(numbers.network))
            throw_usage("{}: no network \"{}\" in model.networks{}", numbers.key, numbers.network,
                        suggestion(numbers.network, names));
        counts[numbers.network] += numbers.count;
    }
    const auto layers = parts.layers.resolved();
    std::map<std::string, std::pair<std::string, double>>
        scales;  // learned_scale -> first network and its scale
    for (const auto& [name, network] : parts.networks) {
        const std::string key = "model.networks." + name;
        check_network_name("model.networks", name);
        const StreamPlace place = stream_place(key + ".input", network.input);
        expect_layer(key + ".input", network.input, place, layers);
        if (counts[name] == 0)
            throw_usage(
                "{}: nothing reads it: no key named network, of a layer, model.input or model.output, is \"{}\"",
                key, name);
        if (counts[name] > kMaxNarrow)
            throw_usage("{}: {} outputs per token, at most {} are possible: move some to a second network",
                        key, counts[name], kMaxNarrow);
        for (const NetworkNumbers& numbers : all)
            if (numbers.network == name && numbers.layer <= place.after) {
                if (numbers.layer < 0)
                    throw_usage(
                        "{}: \"{}\" reads \"{}\", which is not computed yet: its input must be \"first\"",
                        numbers.key, name, network.input);
                throw_usage("{}: \"{}\" reads the output of layer {}, which is not computed before layer {}",
                            numbers.key, name, place.after, numbers.layer);
            }
        if (network.learned_scale.empty()) continue;
        check_network_name(key + ".learned_scale", network.learned_scale);
        const auto [first, is_new] = scales.try_emplace(network.learned_scale, name, network.scale);
        if (!is_new && first->second.second != network.scale)
            throw_usage("{}.scale {}: it shares the learned \"{}\" with \"{}\", which has scale {}", key,
                        network.scale, network.learned_scale, first->second.first, first->second.second);
    }
}

}  // namespace speedrun
