#include "train/model/networks.h"

#include <utility>

#include "train/model/nodes/activation.h"
#include "train/model/nodes/copy.h"
#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

Networks::Networks(GraphWriter& writer, const ModelParts& parts) : w_(writer) {
    const std::vector<NetworkNumbers> all = network_numbers(parts);
    for (const auto& [name, config] : parts.networks) {
        Network network{.name = name,
                        .config = config,
                        .place = stream_place("model.networks." + name + ".input", config.input),
                        .asked = {},
                        .up = kNoParameter,
                        .down = kNoParameter,
                        .bias = kNoParameter};
        for (const NetworkNumbers& numbers : all) {
            if (numbers.network != name) continue;
            network.count += numbers.count;
            network.asked.push_back(numbers);
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
    for (const NetworkNumbers& asked : network.asked) {
        starts.elements.insert(starts.elements.end(), static_cast<size_t>(asked.count),
                               static_cast<float>(asked.start / config.scale));
        given += (given.empty() ? "" : ", ") + asked.name;
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
    for (const NetworkNumbers& asked : network.asked) {
        if (runs.empty() || runs.back().reader != asked.reader)
            runs.push_back({.reader = asked.reader, .first = first, .count = 0, .asked = {}});
        runs.back().count += asked.count;
        runs.back().asked.push_back(&asked);
        first += asked.count;
    }
    return runs;
}

void Networks::give(const Network& network, ValueId numbers, const Run& run) {
    const bool sent = travels(run.reader);
    const ValueId there = sent ? at_reader(network, numbers, run) : numbers;
    int64_t first = sent ? 0 : run.first;
    for (const NetworkNumbers* const asked : run.asked) {
        if (sent && run.reader == Reader::heads)
            of_heads_[asked->name] = {there, first};
        else
            given_[asked->name] = w_.model.graph.view(there, asked->name, first, asked->count);
        first += asked->count;
    }
}

// Redistributes to split heads even if all ranks have the tokens: the gradient sums over the heads of all ranks.
bool Networks::travels(Reader reader) const {
    const TensorPart& tensor = w_.batch.tensor;
    return reader == Reader::heads ? tensor.size > 1 : reader == Reader::whole_attention && tensor.sequence;
}

ValueId Networks::numbers_of(const Network& network, ValueId x) {
    const Extent rows = w_.rows_of(x), hidden{Dimension::numbers, network.config.hidden};
    const std::string& name = network.name;
    const ValueId product = w_.real(name + " product", rows, hidden),
                  active = w_.real(name + " hidden", rows, hidden);
    w_.add<Linear>({.y = product, .x = x, .weight = network.up});
    w_.add<Activate>({.y = active, .x = product}, Activation::gelu_erf);
    const std::vector<Extent> extents{rows, {Dimension::numbers, network.count}};
    const ValueId numbers = w_.f32(name + " numbers", extents);
    const bool learned = network.scale != kNoParameter;
    w_.add<TokenNumbers>({.y = numbers, .x = active, .weight = network.down, .bias = network.bias},
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
    w_.add<OwnNumbers>({.y = own, .x = at->second.of}, at->second.first + w_.batch.tensor.index * heads.size);
    return own;
}

}  // namespace speedrun
