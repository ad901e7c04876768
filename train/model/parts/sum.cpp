#include "train/model/parts/sum.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/model/layers.h"
#include "train/model/nodes/gate.h"

namespace speedrun {

namespace {

struct SlotNames {
    const char *key, *prefix;  // prefix: start of parameter names
};
SlotNames slot_names(SumSlot slot) {
    constexpr SlotNames kNames[] = {{"model.input", "input."}, {"enter", "enter."},
                                    {"values", "attn.value_"}, {"attention.after", "attn."},
                                    {"mlp.after", "mlp."},     {"model.output", "output."}};
    return kNames[static_cast<size_t>(slot)];
}

std::string source_of(const SumTerm& term) {
    return term.table.empty() ? term.of : term.table;
}

std::string number_name(SumSlot slot, const SumTerm& term, const char* suffix) {
    if (!term.name.empty()) return term.name;
    std::string name = slot_names(slot).prefix + source_of(term) + suffix;
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}

std::vector<std::string> learned_numbers(SumSlot slot, const SumTerm& term) {
    std::vector<std::string> names;
    if (term.scale && term.network.empty()) names.push_back(number_name(slot, term, "_scale"));
    if (term.gain) names.push_back(number_name(slot, term, "_gain"));
    if (term.gate) names.push_back(number_name(slot, term, "_gate"));
    return names;
}

class SumCheck {
  public:
    explicit SumCheck(const ModelParts& parts) : layers_(parts.layers.resolved()) {}

    void check(const Sum& sum) {
        const bool may_be_empty = sum.in_layer() && sum.slot != SumSlot::enter;
        if (sum.terms.empty() && !may_be_empty) throw_usage("{}: a sum needs a term", sum.key);
        // The values and the rows of their table are terms as well.
        const size_t most = sum.slot == SumSlot::values ? kMaxTerms - 2 : kMaxTerms;
        if (sum.terms.size() > most)
            throw_usage("{}: {} terms, at most {} are possible", sum.key, sum.terms.size(), most);
        std::set<std::string> vectors;
        for (size_t i = 0; i < sum.terms.size(); ++i) {
            const SumTerm& term = sum.terms[i];
            const std::string key = fmt::format("{}[{}]", sum.key, i);
            check_source(key, sum, term);
            const std::vector<std::string> names = learned_numbers(sum.slot, term);
            check_factors(key, term, names.size());
            if (!term.network.empty()) take(key, sum, scale_name(sum.slot, term));
            const bool in_vector = !term.name.empty() && !term.gain && !term.gate;
            if (in_vector && !vectors.insert(term.name).second) continue;
            for (const std::string& name : names) take(key, sum, name);
        }
    }

  private:
    void check_source(const std::string& key, const Sum& sum, const SumTerm& term) const {
        if (term.of.empty() == term.table.empty())
            throw_usage("{}: a term has one source, not of \"{}\" and table \"{}\"", key, term.of,
                        term.table);
        if (term.is_place()) earlier_place(key + ".of", term.of, sum.layer, layers_);
        const bool after = sum.slot == SumSlot::attention || sum.slot == SumSlot::mlp;
        if (term.of == SumTerm::kOutput && !after)
            throw_usage("{}: the source \"output\" belongs to attention.after and mlp.after", key);
    }
    static void check_factors(const std::string& key, const SumTerm& term, size_t learned) {
        const bool scaled = term.scale || !term.network.empty();
        if (term.gain && !scaled) throw_usage("{}.gain {}: without a scale, use scale", key, *term.gain);
        if (term.gain && term.gate)
            throw_usage("{}: gain {} and gate {}: one of them is possible", key, *term.gain, *term.gate);
        if (term.name.empty()) return;
        if (learned != 1)
            throw_usage("{}.name \"{}\": the term has {} learned numbers, a name needs one", key, term.name,
                        learned);
        constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
        if (term.name.find_first_not_of(kLetters) != std::string::npos)
            throw_usage("{}.name \"{}\": letters, digits, _ and . are possible", key, term.name);
    }
    void take(const std::string& key, const Sum& sum, const std::string& name) {
        if (!names_.emplace(sum.in_layer() ? sum.layer : StreamPlace::kInput, name).second)
            throw_usage(
                "{}: the number {} belongs to another term: add the source once, or give the number a name",
                key, name);
    }

    const std::vector<std::optional<LayerConfig>> layers_;
    std::set<std::pair<int64_t, std::string>> names_;
};

// Writes the terms of one sum.
class TermWriter {
  public:
    TermWriter(SumLayer& layer, SumSlot slot) : layer_(layer), w_(layer.w), slot_(slot) {}

    WeightedSum::Term write(const SumTerm& term, const std::vector<SumTerm>& all) {
        WeightedSum::Term written{.value = source(term), .factor = static_cast<float>(term.constant)};
        if (!term.network.empty()) {
            written.gate = layer_.networks.number(scale_name(slot_, term));
        } else if (term.scale) {
            add_scale(term, all, written);
        }
        if (term.gain) {
            const ParameterId gain = w_.number(number_name(slot_, term, "_gain"), *term.gain,
                                               meaning(term, "b: second factor of "));
            multiply(written, {.value = weight_of(written), .parameter = gain});
        }
        if (term.gate) {
            const ValueId gate = as_value(w_.number(number_name(slot_, term, "_gate"), *term.gate,
                                                    meaning(term, "s: sigmoid(s) is a factor of ")),
                                          GateActivation::sigmoid);
            if (term.scale || !term.network.empty())
                multiply(written, {.value = weight_of(written), .gate = gate});
            else
                written.gate = gate;
        }
        return written;
    }

  private:
    ValueId source(const SumTerm& term) const {
        if (!term.table.empty()) return layer_.tables.in_stream(term.table);
        if (term.of == SumTerm::kStream) return layer_.stream;
        if (term.of == SumTerm::kOutput) return layer_.output;
        return layer_.places.at(stream_place("of", term.of).after);
    }
    std::string meaning(const SumTerm& term, const char* formula) const {
        return fmt::format("{}{} in {}", formula, source_of(term), slot_names(slot_).key);
    }
    ValueId as_value(ParameterId number, GateActivation activation) const {
        const char* const name = activation == GateActivation::sigmoid ? "gate" : "number";
        const ValueId y = w_.f32(name, std::vector<Extent>(2, {Dimension::numbers, 1}));
        w_.add<FactorGate>({.y = y, .one = w_.one(), .number = number}, activation);
        return y;
    }
    ValueId weight_of(const WeightedSum::Term& term) const {
        return term.gate != kNoValue ? term.gate : as_value(term.parameter, GateActivation::identity);
    }
    // Makes the product the weight of the term, because a weighted sum has one weight per source.
    void multiply(WeightedSum::Term& term, const WeightedSum::Term& product) const {
        const std::vector<Extent> extents = w_.model.graph[product.value].extents;
        term.gate = w_.f32("product of numbers", extents);
        term.parameter = kNoParameter;
        w_.add<WeightedSum>({.y = term.gate, .terms = {product}}, extents[0].size);
    }
    // Scales of one name are elements of one parameter, in the order of the terms.
    void add_scale(const SumTerm& term, const std::vector<SumTerm>& all, WeightedSum::Term& written) {
        const auto [at, is_new] = vectors_.try_emplace(term.name);
        if (term.name.empty() || is_new) {
            InitRule starts{.kind = InitRule::Kind::elements};
            for (const SumTerm& other : all)
                if (&other == &term || (!term.name.empty() && other.name == term.name))
                    starts.elements.push_back(static_cast<float>(*other.scale));
            const auto count = static_cast<int64_t>(starts.elements.size());
            at->second = {.id =
                              w_.parameter(number_name(slot_, term, "_scale"), {{Dimension::numbers, count}},
                                           {count == 1 ? GraphWriter::filled(*term.scale) : starts,
                                            meaning(term, "a: factor of ")})};
        }
        written.parameter = at->second.id;
        written.element = at->second.used++;
    }

    struct Vector {
        ParameterId id = kNoParameter;
        int64_t used = 0;
    };
    SumLayer& layer_;
    GraphWriter& w_;
    const SumSlot slot_;
    std::map<std::string, Vector> vectors_;
};

}  // namespace

void SumTerm::fields(FieldVisitor& v) {
    v.field(
        "of", of,
        "source of the term; \"stream\": current stream; \"output\": output of attention or the MLP (in after); \"first\": x0, "
        "the output of model.input before its sums; \"input\": input of the first layer; \"after 3\": output "
        "of layer 3");
    v.field("table", table, "name of a table, with rows that are the source instead of `of`");
    v.field("constant", constant, "constant factor", {-1e6, 1e6});
    v.field(
        "scale", scale,
        "initial value of a learned factor; null: none. With a network: initial value of its output, 0 if null",
        {-1e6, 1e6});
    v.field("gain", gain, "initial value of a second learned factor; null: none", {-1e6, 1e6});
    v.field("gate", gate, "initial value of a learned s, with factor sigmoid(s); null: none", {-1e6, 1e6});
    v.field(
        "network", network,
        "name in model.networks of the hyper-network (MUDD-like) that computes scale per token; empty: none");
    v.field(
        "name", name,
        "name of the learned scalar, instead of SLOT.SOURCE_scale; scales of equal name in a sum are one vector");
}

double SumTerm::initial_factor() const {
    const double sigmoid = gate ? 1 / (1 + std::exp(-*gate)) : 1;
    return constant * scale.value_or(network.empty() ? 1 : 0) * gain.value_or(1) * sigmoid;
}

void SumConfig::fields(FieldVisitor& v) {
    v.objects("terms", terms, "terms of the sum that replaces the stream");
}

std::vector<Sum> sums_of(const ModelParts& parts) {
    std::vector<Sum> sums;
    const auto add = [&](SumSlot slot, int64_t layer, std::string key, const std::vector<SumTerm>& terms) {
        sums.push_back({slot, layer, std::move(key), terms});
    };
    const auto add_ends = [&](SumSlot slot, int64_t layer, const std::vector<StreamPartConfig>& ends) {
        for (size_t i = 0; i < ends.size(); ++i)
            if (ends[i].type == StreamPart::sum)
                add(slot, layer, fmt::format("{}[{}].terms", slot_names(slot).key, i), ends[i].terms);
    };
    add_ends(SumSlot::input, StreamPlace::kInput, parts.input);
    const std::vector<std::optional<LayerConfig>> layers = parts.layers.resolved();
    const auto count = static_cast<int64_t>(layers.size());
    for (int64_t i = 0; i < count; ++i) {
        const auto& layer = layers[static_cast<size_t>(i)];
        if (!layer) continue;
        const std::string key = fmt::format("model.layers, layer {}: ", i);
        for (size_t j = 0; j < layer->enter.size(); ++j)
            add(SumSlot::enter, i, fmt::format("{}enter[{}].terms", key, j), layer->enter[j].terms);
        if (layer->attention) {
            add(SumSlot::values, i, key + "attention.values", layer->attention->values);
            add(SumSlot::attention, i, key + "attention.after", layer->attention->after);
        }
        if (layer->mlp) add(SumSlot::mlp, i, key + "mlp.after", layer->mlp->after);
    }
    add_ends(SumSlot::output, count, parts.output);
    return sums;
}

std::string scale_name(SumSlot slot, const SumTerm& term) {
    return number_name(slot, {.of = term.of, .table = term.table}, "_scale");
}

void check_sums(const ModelParts& parts) {
    SumCheck check(parts);
    for (const Sum& sum : sums_of(parts)) check.check(sum);
}

void build_sum(SumLayer& layer, SumSlot slot, const std::vector<SumTerm>& terms) {
    TermWriter writer(layer, slot);
    for (const SumTerm& term : terms) layer.terms.push_back(writer.write(term, terms));
}

}  // namespace speedrun
