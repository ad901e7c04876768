#include "train/config/cannot_learn.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace speedrun {

namespace {

bool is_zero(const InitConfig& init, double init_scale) {
    return init.value == 0 || (init.type != InitKind::constant && init_scale == 0);
}

class InitialZeros {
  public:
    explicit InitialZeros(const ModelConfig& model) : init_scale_(model.init_scale), parts_(model.parts) {}

    std::vector<std::string> find() const {
        std::vector<std::string> found;
        const auto layers = parts_.layers.resolved();
        const bool first = !input_is_zero();  // true if x0 is not zero
        bool stream = first;
        for (const StreamPartConfig& part : parts_.input)
            if (part.type == StreamPart::sum) stream = is_nonzero(part.terms, {first, stream, false});
        find_unread(layers, found);
        for (size_t i = 0; i < layers.size(); ++i) {
            if (!layers[i]) continue;
            const std::string key = fmt::format("model.layers, layer {}: ", i);
            for (const SumConfig& sum : layers[i]->enter)
                stream = is_nonzero(sum.terms, {first, stream, false});
            if (const auto& attention = layers[i]->attention) {
                const bool no_values = values_are_zero(*attention, stream),
                           no_output = zero(attention->out_init);
                if (values_are_zero(*attention, true) && no_output)
                    found.push_back(
                        key +
                        "attention's values and its out_init are zero at the start, so that both stay zero: "
                        "give init, or out_init, a value");
                else if (is_off(attention->after) && (values_are_zero(*attention, true) || no_output))
                    found.push_back(off(key + "attention", no_output ? "out_init" : "values"));
                stream = is_nonzero(attention->after, {first, stream, !no_values && !no_output});
            }
            if (const auto& mlp = layers[i]->mlp) {
                // A zero first matrix alone blocks its gradient if the activation has slope 0 at 0.
                const char* const flat = mlp->flat_activation();
                const bool no_output = zero(mlp->down_init);
                if (zero(mlp->init) && (flat || no_output))
                    found.push_back(fmt::format(
                        "{}mlp's init is zero, and {}, so that both matrices stay as they are: give init a value",
                        key, flat ? fmt::format("{} has no slope at zero", flat) : "so is its down_init"));
                else if (is_off(mlp->after) && (zero(mlp->init) || no_output))
                    found.push_back(off(key + "mlp", no_output ? "down_init" : "init"));
                stream = is_nonzero(mlp->after, {first, stream, stream && !zero(mlp->init) && !no_output});
            }
        }
        for (const auto& [name, network] : parts_.networks)
            if (zero(network.init))
                found.push_back(fmt::format(
                    "model.networks.{}.init is zero, and so is its second matrix, so that both stay zero: give init a "
                    "value",
                    name));
        if (!stream && head_is_zero())
            found.insert(
                found.begin(),
                "model.input: all tables are zero at the start, and so is the matrix of the head, so that "
                "nothing in this model ever learns: give a table's init, or head.init, a value");
        return found;
    }

  private:
    static bool is_off(const std::vector<SumTerm>& after) {
        return std::any_of(after.begin(), after.end(), [](const SumTerm& term) {
            return term.of == SumTerm::kOutput && term.initial_factor() == 0;
        });
    }
    static std::string off(const std::string& sublayer, const char* other) {
        return fmt::format(
            "{}.after: the factor of output and {} are zero at the start, so that both stay zero: give one of them a value",
            sublayer, other);
    }
    struct NonZero {
        bool first, stream, output;
    };
    bool is_nonzero(const std::vector<SumTerm>& sum, const NonZero& x) const {
        if (sum.empty()) return x.stream || x.output;
        return std::any_of(sum.begin(), sum.end(), [&](const SumTerm& term) {
            if (term.initial_factor() == 0) return false;
            if (!term.table.empty()) return !table_is_zero(term.table);
            if (term.of == SumTerm::kStream) return x.stream;
            if (term.of == SumTerm::kOutput) return x.output;
            return term.of != "first" || x.first;
        });
    }
    // Reports zero tables with a zero factor in every sum.
    void find_unread(const std::vector<std::optional<LayerConfig>>& layers,
                     std::vector<std::string>& found) const {
        std::map<std::string, bool> read;
        for (const Sum& sum : sums_of(parts_))
            for (const SumTerm& term : sum.terms)
                if (!term.table.empty() &&
                    (sum.slot != SumSlot::output || !is_value_table(layers, term.table)))
                    read[term.table] |= term.initial_factor() != 0;
        for (const auto& [table, is_read] : read)
            if (!is_read && table_is_zero(table) && table != parts_.head.tied_to)
                found.push_back(fmt::format(
                    "model.tables.{} is zero at the start, and so is its factor in every sum, so that they stay zero: give the table's "
                    "init, or a scale, a value",
                    table));
    }
    static bool is_value_table(const std::vector<std::optional<LayerConfig>>& layers,
                               const std::string& table) {
        return std::any_of(layers.begin(), layers.end(), [&](const auto& layer) {
            return layer && layer->attention && layer->attention->value_table == table;
        });
    }
    bool zero(const InitConfig& init) const { return is_zero(init, init_scale_); }
    bool table_is_zero(const std::string& name) const { return zero(parts_.find_table(name)->init); }
    bool input_is_zero() const {
        return std::all_of(parts_.input.begin(), parts_.input.end(), [&](const StreamPartConfig& part) {
            return part.type != StreamPart::table || table_is_zero(part.table);
        });
    }
    bool head_is_zero() const {
        return parts_.head.tied_to.empty() ? zero(parts_.head.init) : table_is_zero(parts_.head.tied_to);
    }
    // stream: true if the stream is not zero.
    bool values_are_zero(const AttentionConfig& attention, bool stream) const {
        const bool computed = stream && !zero(attention.init);
        const bool scaled_away = attention.value_scale && attention.value_start == 0;
        if (attention.value_table.empty()) return !computed || scaled_away;
        if (const AttentionPart* const rows = attention.parts.value_rows())
            return (!computed || scaled_away) &&
                   (*rows->value_row_factor() == 0 || table_is_zero(attention.value_table));
        return attention.value_start == 0 || (!computed && table_is_zero(attention.value_table));
    }

    const double init_scale_;
    const ModelParts parts_;
};

}  // namespace

std::vector<std::string> parts_that_cannot_learn(const ModelConfig& model) {
    if (!model.init_from.empty()) return {};
    return InitialZeros(model).find();
}

}  // namespace speedrun
