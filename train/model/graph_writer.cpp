#include "train/model/graph_writer.h"

#include <cmath>
#include <utility>

#include "kernels/device/error.h"
#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"

namespace speedrun {

GraphWriter::GraphWriter(const ModelConfig& config, const ModelParts& parts, const BatchShape& batch)
    : batch(batch), config_(config), parts_(parts) {
    model.table = ParameterTable(batch.tensor.index);
}

Extent GraphWriter::cut(Extent whole) const {
    const int parts = batch.tensor.size;
    if (parts == 1) return whole;
    const bool padded = whole.dimension == Dimension::vocabulary;
    if (!padded && whole.size % (parts * whole.stacked) != 0)
        throw_internal("{} of {} x {} have no {} equal parts", name_of(whole.dimension), whole.stacked,
                       whole.size / whole.stacked, parts);
    whole.whole = whole.size;
    whole.size = (whole.size + parts - 1) / parts;
    whole.parts = parts;
    return whole;
}

void GraphWriter::begin_unit(std::string name, const std::string& prefix) {
    prefix_ = prefix;
    model.graph.begin_unit();
    model.graph.name_unit(std::move(name), prefix);
}

ValueId GraphWriter::input(const Column& column) {
    if (const ColumnInput* const known = model.find_input(column.name)) return known->value;
    std::vector<Extent> extents{tokens()};
    if (column.rows > 0) extents.insert(extents.begin(), {Dimension::numbers, column.rows});
    if (column.per_token > 1) extents.push_back({Dimension::numbers, column.per_token});
    const ValueId value =
        model.graph.value("batch." + column.name, Element::ids, std::move(extents), Holder::batch);
    model.inputs.push_back({column, value});
    return value;
}

ValueId GraphWriter::real(const std::string& name, const Extent& rows, const Extent& columns) {
    return model.graph.value(prefix_ + name, Element::real, {rows, columns});
}

ValueId GraphWriter::f32(const std::string& name, std::vector<Extent> extents) {
    return model.graph.value(prefix_ + name, Element::f32, std::move(extents));
}

ValueId GraphWriter::view(ValueId of, const std::string& name, int64_t first, int64_t count) {
    return model.graph.view(of, prefix_ + name, first, count);
}

ValueId GraphWriter::constant(const std::string& name, std::vector<Extent> extents,
                              std::vector<float> numbers) {
    return model.graph.constant(name, std::move(extents), std::move(numbers));
}

ValueId GraphWriter::one() {
    if (one_ == kNoValue)
        one_ = model.graph.constant("one", {{Dimension::numbers, 1}, {Dimension::numbers, 1}}, {1},
                                    Element::real);
    return one_;
}

InitRule GraphWriter::rule(const InitConfig& init, int64_t fan_in) const {
    if (init.type == InitKind::constant) return filled(init.value);
    const bool uniform = init.type == InitKind::uniform;
    double deviation = init.value;
    // Radford et al. 2019, section 2.3.
    if (init.by_depth) deviation /= std::sqrt(2.0 * static_cast<double>(parts_.layers.count));
    // A uniform distribution over ±b has the deviation b/√3.
    double scale = config_.init_scale * (uniform ? std::sqrt(3.0) : 1.0) * deviation;
    if (init.by_fan_in) scale /= std::sqrt(static_cast<double>(fan_in));
    return {uniform ? InitRule::Kind::uniform : InitRule::Kind::normal, static_cast<float>(scale)};
}

ParameterId GraphWriter::parameter(const std::string& name, const std::vector<Extent>& extents,
                                   const Start& start) {
    const ParameterId id = model.table.declare(prefix_ + name, extents, start.init, start.matrices);
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

ValueId GraphWriter::norm(const std::string& name, ValueId x) {
    const ValueId y = real(name, rows_of(x), width());
    const NormStatistics kept = statistics(name, x);
    NormParameters parameters;
    if (parts_.norms.gain)
        parameters.gain =
            parameter(name + ".gain", {width()}, {filled(1), "the norm's output is multiplied by it"});
    if (parts_.norms.bias)
        parameters.bias = parameter(name + ".bias", {width()}, {filled(0), "added to the norm's output"});
    add<Norm>({.y = y, .statistics = kept, .x = x, .parameters = parameters}, parts_.norms.type,
              static_cast<float>(parts_.norms.epsilon));
    return y;
}

ValueId GraphWriter::linear(const std::string& name, ValueId x, const Weight& w) {
    const ParameterId weight = parameter(name + ".weight", {w.outputs, w.inputs},
                                         {rule(w.init, w.fan_in), w.meaning, w.matrices, w.head_rows});
    const ParameterId bias =
        w.bias ? parameter(name + ".bias", {w.outputs}, {filled(0), "added to " + name + "'s product"})
               : kNoParameter;
    const ValueId y = real(name, rows_of(x), w.outputs);
    // A bias is in one of the terms of a sum.
    Linear::Options options{.adds_bias = w.inputs.parts == 1 || batch.tensor.index == 0, .fp8 = w.fp8};
    if (w.fp8) {
        options.rows = rows_of(x).size;
        options.inputs = w.inputs.size;
        options.outputs = w.outputs.size;
        options.kept_x = kept_scale(name + ".x", w.fp8->x);
        options.kept_weight = kept_scale(name + ".weight", w.fp8->weight);
    }
    add<Linear>({.y = y, .x = x, .weight = weight, .bias = bias}, options);
    return y;
}

int GraphWriter::kept_scale(const std::string& of, const Fp8ScaleConfig& how) {
    if (how.by != Fp8ScaleBy::last_step) return -1;
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
    const Extent rows = rows_of(terms.front().value);
    const ValueId y = real(name, rows, columns);
    // Rows of the batch are no matter for a share of the tokens: no term of such a sum is shifted.
    add<WeightedSum>({.y = y, .terms = terms},
                     rows.dimension == Dimension::own_tokens ? rows.size : batch.local_length());
    return y;
}

ValueId GraphWriter::redistribute(ValueId x, const std::string& suffix, const Redistribution& how) {
    const Extent rows = how.to == Placement::shard(0) ? own_tokens() : tokens();
    const std::string named = model.graph[x].name + suffix;
    const Extent columns = model.graph[x].extents.back();
    const Element element = model.graph[x].element;
    const ValueId y = how.in_place() ? model.graph.view(x, named, 0, columns.size)
                                     : model.graph.value(named, element, {rows, columns});
    add<Redistribute>(
        {.y = y, .x = x}, how,
        Redistribute::Options{
            .part = batch.tensor, .tokens = tokens().size, .width = columns.size, .element = element});
    return y;
}

std::optional<ChunkBorders::Options> GraphWriter::chunk_borders(const Extent& columns) const {
    if (batch.part.size == 1) return std::nullopt;
    return ChunkBorders::Options{.part = batch.part,
                                 .rows = batch.tokens / batch.sequence_length,
                                 .sequence_length = batch.sequence_length,
                                 .columns = columns.size};
}

ValueId GraphWriter::into_matrices(ValueId x) {
    if (batch.tensor.size == 1) return x;
    return redistribute(x, " for all",
                        batch.tensor.sequence ? Redistribution::gather() : Redistribution::enter());
}

ValueId GraphWriter::into_whole(ValueId x) {
    return batch.tensor.sequence ? redistribute(x, " whole", Redistribution::whole()) : x;
}

ValueId GraphWriter::into_stream(ValueId terms) {
    if (batch.tensor.size == 1) return terms;
    return redistribute(terms, " summed",
                        batch.tensor.sequence ? Redistribution::scatter() : Redistribution::sum());
}

ValueId GraphWriter::everywhere(ValueId terms) {
    return batch.tensor.size == 1 ? terms : redistribute(terms, " summed", Redistribution::sum());
}

ValueId GraphWriter::shared_out(ValueId x) {
    return batch.tensor.sequence ? redistribute(x, " shared", Redistribution::slice()) : x;
}

ValueId GraphWriter::as_term(ValueId x) {
    return batch.tensor.size == 1 ? x : redistribute(x, " as a term", Redistribution::term());
}

}  // namespace speedrun
