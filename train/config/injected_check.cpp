#include "train/config/injected_check.h"

#include <set>

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/config/network_numbers.h"

namespace speedrun {

namespace {

using Layers = std::vector<std::optional<LayerConfig>>;

void check_place(const std::string& key, const InjectedConfig& injected, int64_t layer,
                 const Layers& layers) {
    if (!injected.table.empty()) {
        if (injected.of != InjectedConfig::kFirst && !injected.of.empty())
            throw_usage("{}: table \"{}\" and of \"{}\": one value is added, name one", key, injected.table,
                        injected.of);
        return;
    }
    earlier_place(key + ".of", injected.of, layer, layers);
}

struct AddedList {
    std::string key;
    size_t most;  // with what they are added to, kMaxTerms
    bool may_be_stream = false;
};
void check_list(const AddedList& list, const std::vector<InjectedConfig>& added, int64_t layer,
                const Layers& layers) {
    if (added.size() > list.most)
        throw_usage("{}: {} are added, at most {} are possible", list.key, added.size(), list.most);
    std::set<std::string> seen;
    for (size_t i = 0; i < added.size(); ++i) {
        const std::string key = fmt::format("{}[{}]", list.key, i);
        if (!seen.insert(added[i].value_name()).second)
            throw_usage("{}: \"{}\" is added twice", key,
                        added[i].table.empty() ? added[i].of : added[i].table);
        if (added[i].is_stream() && !list.may_be_stream)
            throw_usage("{}.of: the stream itself has a factor of its own here, name another place", key);
        if (!added[i].is_stream()) check_place(key, added[i], layer, layers);
    }
}

void check_added_output(const ModelParts& parts, const Layers& layers) {
    std::vector<InjectedConfig> neighbours;
    for (size_t i = 0; i < parts.output.size(); ++i) {
        const StreamPartConfig& part = parts.output[i];
        const std::string key = fmt::format("model.output[{}]", i);
        if (part.type != StreamPart::add) {
            if (!part.of.empty() || !part.network.empty())
                throw_usage("{}: of and network are for add, not for {}", key, word_of(part.type));
            continue;
        }
        neighbours.push_back(added_by(part));
        if (part.table.empty() && part.of.empty()) throw_usage("{}: say what is added, of or table", key);
        check_list({key, 1}, {neighbours.back()}, static_cast<int64_t>(layers.size()), layers);
    }
    check_list({"model.output", kMaxTerms - 1}, neighbours, static_cast<int64_t>(layers.size()), layers);
}

}  // namespace

void check_injected_places(const ModelParts& parts) {
    const Layers layers = parts.layers.resolved();
    for (size_t i = 0; i < layers.size(); ++i) {
        if (!layers[i]) continue;
        const auto number = static_cast<int64_t>(i);
        const std::string key = fmt::format("model.layers, layer {}: ", i);
        if (const auto& mix = layers[i]->mix) {
            if (mix->add.empty() && !mix->network.empty())
                throw_usage("{}mix.network \"{}\": say what is added (add), such as [{{}}] for x0", key,
                            mix->network);
            check_list({key + "mix.add", kMaxTerms - 1}, mix->add, number, layers);
        }
        if (const auto& attention = layers[i]->attention) {
            check_list({key + "attention.add_to_values", kMaxTerms - 2, true}, attention->add_to_values,
                       number, layers);
            if (attention->join)
                check_list({key + "attention.join.inject", kMaxTerms - 2}, attention->join->inject, number,
                           layers);
        }
        if (const auto& mlp = layers[i]->mlp)
            if (mlp->join)
                check_list({key + "mlp.join.inject", kMaxTerms - 2}, mlp->join->inject, number, layers);
    }
    for (size_t i = 0; i < parts.input.size(); ++i) {
        const StreamPartConfig& part = parts.input[i];
        if (!part.of.empty()) throw_usage("model.input[{}]: of is for add in model.output", i);
        if (!part.network.empty() && part.type != StreamPart::inject)
            throw_usage("model.input[{}]: network is for inject, not for {}", i, word_of(part.type));
    }
    check_added_output(parts, layers);
}

}  // namespace speedrun
