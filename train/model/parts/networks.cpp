#include "train/model/parts/networks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kernels/device/error.h"
#include "train/config/suggestion.h"
#include "train/model/layers.h"
#include "train/model/nodes/activation.h"
#include "train/model/nodes/copy.h"
#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

namespace {

constexpr const char* kNetworkLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

class NetworkOutputCollector {
  public:
    explicit NetworkOutputCollector(const ModelParts& parts) : whole_(whole_attention(parts)) {
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
                              [](const NetworkOutputs& numbers) { return !numbers.by_heads; });
    }
    std::vector<NetworkOutputs> take() { return std::move(numbers_); }

  private:
    using Reader = NetworkOutputs::Reader;
    struct Asked {
        std::string name, key;
        double start;
        int64_t heads = 0, count = 1;
        bool attention = false;  // true: attention reads the numbers
    };
    void note(const std::string& network, const Asked& requested) {
        if (network.empty()) return;
        numbers_.push_back({.network = network,
                            .name = prefix_ + requested.name,
                            .key = requested.key,
                            .layer = layer_,
                            .count = std::max<int64_t>({requested.heads, requested.count, 1}),
                            .start = requested.start,
                            .by_heads = requested.heads > 0,
                            .reader = requested.attention ? reader_in_attention() : Reader::stream});
    }
    NetworkOutputs::Reader reader_in_attention() const {
        return whole_.layers.count(layer_) > 0 ? Reader::whole_attention : Reader::heads;
    }
    void note_parts(const AttentionConfig& attention) {
        std::vector<std::pair<std::string, TokenFactor>> numbers;  // key of the part, number
        for (const auto& [key, part] : attention.parts.all())
            for (const TokenFactor& number : part->numbers()) numbers.emplace_back(key, number);
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
    std::vector<NetworkOutputs> numbers_;
};

void check_network_name(const std::string& key, const std::string& name) {
    if (name.empty() || name.size() > 60 || name.find_first_not_of(kNetworkLetters) != std::string::npos)
        throw_usage("{}: \"{}\" is no name: letters, digits and _ are", key, name);
}

}  // namespace

std::vector<NetworkOutputs> network_outputs(const ModelParts& parts) {
    return NetworkOutputCollector(parts).take();
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

void check_networks(const ModelParts& parts) {
    std::set<std::string> names;
    for (const auto& [name, network] : parts.networks) names.insert(name);
    std::map<std::string, int64_t> counts;
    const std::vector<NetworkOutputs> all = network_outputs(parts);
    for (const NetworkOutputs& numbers : all) {
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
        const StreamPlace place = place_in(key + ".input", network.input, layers);
        if (counts[name] == 0)
            throw_usage(
                "{}: nothing reads it: no key named network, of a layer, model.input or model.output, is \"{}\"",
                key, name);
        if (counts[name] > kMaxNarrow)
            throw_usage("{}: {} outputs per token, at most {} are possible: move some to a second network",
                        key, counts[name], kMaxNarrow);
        for (const NetworkOutputs& numbers : all)
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

Networks::Networks(GraphWriter& writer, const ModelParts& parts) : w_(writer) {
    const std::vector<NetworkOutputs> all = network_outputs(parts);
    for (const auto& [name, config] : parts.networks) {
        Network network{.name = name,
                        .config = config,
                        .place = stream_place("model.networks." + name + ".input", config.input),
                        .requested = {},
                        .up = kNoParameter,
                        .down = kNoParameter,
                        .bias = kNoParameter};
        for (const NetworkOutputs& numbers : all) {
            if (numbers.network != name) continue;
            network.count += numbers.count;
            network.requested.push_back(numbers);
        }
        declare(network);
        networks_.push_back(std::move(network));
    }
}

ParameterId Networks::parameter(const std::string& name, const std::vector<Extent>& extents,
                                const InitRule& init, const std::string& meaning) {
    const ParameterId id = w_.model.table.declare("networks." + name, extents, init);
    w_.model.table.explain(id, meaning);
    return id;
}

void Networks::declare(Network& network) {
    const NetworkConfig& config = network.config;
    const Extent hidden{Dimension::numbers, config.hidden}, numbers{Dimension::numbers, network.count};
    InitRule starts{.kind = InitRule::Kind::elements};
    std::string given;
    for (const NetworkOutputs& requested : network.requested) {
        starts.elements.insert(starts.elements.end(), static_cast<size_t>(requested.count),
                               static_cast<float>(requested.start / config.scale));
        given += (given.empty() ? "" : ", ") + requested.name;
    }
    network.up = parameter(network.name + ".up.weight", {hidden, w_.extents.width()},
                           w_.rule(config.init, w_.extents.width().size),
                           "h = gelu(W x), x the stream: " + config.input);
    network.down = parameter(network.name + ".down.weight", {numbers, hidden}, GraphWriter::filled(0),
                             "(W h + b) scale are, in this order, " + given);
    network.bias = parameter(network.name + ".bias", {numbers}, starts, "b, see down.weight");
    if (config.learned_scale.empty()) return;
    const std::string name = config.learned_scale;
    for (const Network& other : networks_)
        if (other.config.learned_scale == name) network.scale = other.scale;
    if (network.scale == kNoParameter)
        network.scale = parameter(name, {{Dimension::numbers, 1}}, GraphWriter::filled(config.scale),
                                  "scale, see down.weight");
}

std::vector<int64_t> Networks::layers_read() const {
    std::vector<int64_t> layers;
    for (const Network& network : networks_)
        if (network.place.after >= 0) layers.push_back(network.place.after);
    return layers;
}

void Networks::write(const StreamPlace& place, ValueId x) {
    for (const Network& network : networks_) {
        if (network.place.after != place.after) continue;
        const ValueId numbers = numbers_of(network, x);
        for (const Run& run : runs_of(network)) give(network, numbers, run);
    }
}

std::vector<Networks::Run> Networks::runs_of(const Network& network) {
    std::vector<Run> runs;
    int64_t first = 0;
    for (const NetworkOutputs& requested : network.requested) {
        if (runs.empty() || runs.back().reader != requested.reader)
            runs.push_back({.reader = requested.reader, .first = first, .count = 0, .requested = {}});
        runs.back().count += requested.count;
        runs.back().requested.push_back(&requested);
        first += requested.count;
    }
    return runs;
}

void Networks::give(const Network& network, ValueId numbers, const Run& run) {
    const bool sent = is_exchanged(run.reader);
    const ValueId there = sent ? at_reader(network, numbers, run) : numbers;
    int64_t first = sent ? 0 : run.first;
    for (const NetworkOutputs* const requested : run.requested) {
        if (sent && run.reader == Reader::heads)
            of_heads_[requested->name] = {there, first};
        else
            given_[requested->name] = w_.model.graph.view(there, requested->name, first, requested->count);
        first += requested->count;
    }
}

// Redistributes to split heads even if all ranks have the tokens: the gradient sums over the heads of all ranks.
bool Networks::is_exchanged(Reader reader) const {
    const TensorSlice& tensor = w_.batch.tensor;
    return reader == Reader::heads ? tensor.size > 1 : reader == Reader::whole_attention && tensor.sequence;
}

ValueId Networks::numbers_of(const Network& network, ValueId x) {
    const Extent rows = w_.rows_of(x), hidden{Dimension::numbers, network.config.hidden};
    const std::string& name = network.name;
    const ValueId product = w_.compute_value(name + " product", rows, hidden),
                  active = w_.compute_value(name + " hidden", rows, hidden);
    w_.add<Linear>({.y = product, .x = x, .weight = network.up});
    w_.add<Activate>({.y = active, .x = product}, Activation::gelu_erf);
    const std::vector<Extent> extents{rows, {Dimension::numbers, network.count}};
    const ValueId numbers = w_.f32(name + " numbers", extents);
    const bool learned = network.scale != kNoParameter;
    w_.add<TokenFactors>({.y = numbers, .x = active, .weight = network.down, .bias = network.bias},
                         learned ? 1.0F : static_cast<float>(network.config.scale));
    if (!learned) return numbers;
    const ValueId scaled = w_.f32(name + " scaled", extents);
    w_.add<WeightedSum>({.y = scaled, .terms = {{.value = numbers, .parameter = network.scale}}}, rows.size);
    return scaled;
}

ValueId Networks::at_reader(const Network& network, ValueId numbers, const Run& run) {
    const bool heads = run.reader == Reader::heads;
    const std::string name = network.name + (heads ? " of heads" : " of whole attention");
    // Collectives require contiguous values.
    const ValueId own = w_.f32(name, {w_.rows_of(numbers), {Dimension::numbers, run.count}});
    w_.add<Copy>({.y = own, .x = w_.view(numbers, name + " among numbers", run.first, run.count)});
    return heads ? into_matrices(w_, own) : into_whole(w_, own);
}

ValueId Networks::by_heads(const std::string& name, const Extent& heads) {
    const auto at = of_heads_.find(w_.name(name));
    if (at == of_heads_.end()) return number(name);
    const ValueId own = w_.f32(name + " of own heads", {w_.extents.tokens(), heads});
    w_.add<OwnFactors>({.y = own, .x = at->second.of}, at->second.first + w_.batch.tensor.index * heads.size);
    return own;
}

}  // namespace speedrun
