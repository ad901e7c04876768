#include "train/model/graph_writer.h"

#include <cmath>
#include <utility>

#include "kernels/device/error.h"
#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"

namespace speedrun {

GraphWriter::GraphWriter(const ModelConfig& config, const ModelParts& parts, const BatchShape& batch)
    : batch(batch), extents(config, batch), config_(config), parts_(parts) {
    model.table = ParameterTable(batch.tensor.index);
}

void GraphWriter::begin_unit(std::string name, const std::string& prefix) {
    prefix_ = prefix;
    model.graph.begin_unit();
    model.graph.name_unit(std::move(name), prefix);
}

ValueId GraphWriter::input(const Column& column) {
    if (const ColumnInput* const known = model.find_input(column.name)) return known->value;
    std::vector<Extent> extents{this->extents.tokens()};
    if (column.rows > 0) extents.insert(extents.begin(), {Dimension::numbers, column.rows});
    if (column.per_token > 1) extents.push_back({Dimension::numbers, column.per_token});
    const ValueId value =
        model.graph.value("batch." + column.name, Element::ids, std::move(extents), Holder::batch);
    model.inputs.push_back({column, value});
    return value;
}

ValueId GraphWriter::compute_value(const std::string& name, const Extent& rows, const Extent& columns) {
    return model.graph.value(prefix_ + name, Element::compute_dtype, {rows, columns});
}

ValueId GraphWriter::f32(const std::string& name, std::vector<Extent> extents) {
    return model.graph.value(prefix_ + name, Element::f32, std::move(extents));
}

ValueId GraphWriter::view(ValueId of, const std::string& name, int64_t first, int64_t count) {
    return model.graph.view(of, prefix_ + name, first, count);
}

ValueId GraphWriter::one() {
    if (one_ == kNoValue)
        one_ = model.graph.constant("one", {{Dimension::numbers, 1}, {Dimension::numbers, 1}}, {1},
                                    Element::compute_dtype);
    return one_;
}

InitRule GraphWriter::rule(const InitConfig& init, int64_t fan_in) const {
    if (init.type == InitKind::constant) return filled(init.value);
    const bool uniform = init.type == InitKind::uniform;
    double deviation = init.value;
    // Radford et al. 2019, section 2.3.
    if (init.by_depth) deviation /= std::sqrt(2.0 * static_cast<double>(parts_.layers.count));
    // A uniform distribution over ±b has the standard deviation b/√3.
    double scale = config_.init_scale * (uniform ? std::sqrt(3.0) : 1.0) * deviation;
    if (init.by_fan_in) scale /= std::sqrt(static_cast<double>(fan_in));
    return {uniform ? InitRule::Kind::uniform : InitRule::Kind::normal, static_cast<float>(scale)};
}

ParameterId GraphWriter::parameter(const std::string& name, const std::vector<Extent>& extents,
                                   const Start& start) {
    const ParameterId id = model.table.declare(prefix_ + name, extents, start.init);
    model.table.explain(id, start.meaning);
    model.table.set_head_rows(id, start.head_rows);
    return id;
}

ParameterId GraphWriter::number(const std::string& name, double start, std::string meaning) {
    return parameter(name, {{Dimension::numbers, 1}}, {filled(start), std::move(meaning)});
}

NormStatistics GraphWriter::statistics(const std::string& name, ValueId x) {
    const bool centred = parts_.norms.type == NormKind::layernorm;
    const Extent rows = rows_of(x);
    return {centred ? f32(name + "_mean", {rows}) : kNoValue, f32(name + "_rstd", {rows})};
}

ValueId GraphWriter::norm(const std::string& name, ValueId x, bool needs_amax) {
    const ValueId y = compute_value(name, rows_of(x), extents.width());
    const NormStatistics kept = statistics(name, x);
    NormParameters parameters;
    if (parts_.norms.gain)
        parameters.gain = parameter(name + ".gain", {extents.width()},
                                    {filled(1), "the norm's output is multiplied by it"});
    if (parts_.norms.bias)
        parameters.bias =
            parameter(name + ".bias", {extents.width()}, {filled(0), "added to the norm's output"});
    const Extent number{Dimension::numbers, 1};
    const ValueId amax = needs_amax ? f32(name + "_amax", {number, number}) : kNoValue;
    if (needs_amax) amaxes_[y] = amax;
    add<Norm>({.y = y, .statistics = kept, .x = x, .parameters = parameters, .amax = amax}, parts_.norms.type,
              static_cast<float>(parts_.norms.epsilon));
    return y;
}

ValueId GraphWriter::linear(const std::string& name, ValueId x, const Weight& w) {
    const ParameterId weight =
        parameter(name + ".weight", {w.outputs, w.inputs}, {rule(w.init, w.fan_in), w.meaning, w.head_rows});
    const ParameterId bias =
        w.bias ? parameter(name + ".bias", {w.outputs}, {filled(0), "added to " + name + "'s product"})
               : kNoParameter;
    const ParameterId factor =
        w.factor ? number(w.factor->name, w.factor->start, w.factor->meaning) : kNoParameter;
    const ValueId y =
        compute_value(w.addend == kNoValue ? name : "stream after " + name, rows_of(x), w.outputs);
    // Only one term of a sum has the bias.
    Linear::Options options{.adds_bias = w.inputs.parts == 1 || batch.tensor.index == 0,
                            .fp8 = w.fp8,
                            .rows = rows_of(x).size,
                            .inputs = w.inputs.size,
                            .outputs = w.outputs.size,
                            .scaled = w.factor ? w.factor->outputs : 0};
    if (w.fp8) {
        options.kept_x = kept_scale(name + ".x", w.fp8->x);
        options.kept_weight = kept_scale(name + ".weight", w.fp8->weight);
    }
    const auto amax = w.fp8 ? amaxes_.find(x) : amaxes_.end();
    add<Linear>({.y = y,
                 .x = x,
                 .weight = weight,
                 .bias = bias,
                 .x_amax = amax == amaxes_.end() ? kNoValue : amax->second,
                 .factor = factor,
                 .addend = w.addend},
                options);
    return y;
}

int GraphWriter::kept_scale(const std::string& of, const Fp8ScaleConfig& how) {
    if (how.by != Fp8ScaleBy::delayed) return -1;
    return model.table.declare_scale(
        {.name = name(of), .factor = how.factor(), .exact_steps = how.exact_steps});
}

ValueId GraphWriter::gate(const std::string& name, ValueId x, const Extent& gates, int64_t columns,
                          const std::string& meaning) {
    const ValueId y = f32(name, {rows_of(x), gates});
    const ParameterId weight =
        parameter(name + ".weight", {gates, {Dimension::numbers, columns}}, {filled(0), meaning});
    add<Gate>({.y = y, .x = x, .weight = weight}, columns);
    return y;
}

ValueId GraphWriter::sum(const std::string& name, const Extent& columns,
                         const std::vector<WeightedSum::Term>& terms) {
    const ValueId y = compute_value(name, rows_of(terms.front().value), columns);
    sum(y, terms);
    return y;
}

void GraphWriter::sum(ValueId y, const std::vector<WeightedSum::Term>& terms) {
    const Extent rows = rows_of(y);
    // With a share of the tokens the sequence length is unused: such a sum has no shifted terms.
    add<WeightedSum>({.y = y, .terms = terms},
                     rows.dimension == Dimension::own_tokens ? rows.size : batch.local_length());
}

}  // namespace speedrun
