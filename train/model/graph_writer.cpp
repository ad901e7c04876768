#include "train/model/graph_writer.h"

#include <cmath>
#include <utility>

#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"

namespace speedrun {

void GraphWriter::begin_unit(std::string name, const std::string& prefix) {
    prefix_ = prefix;
    model.graph.begin_unit();
    model.graph.name_unit(std::move(name), prefix);
}

ValueId GraphWriter::ids(std::string name, int64_t rows) {
    std::vector<Extent> extents{tokens()};
    if (rows > 0) extents.insert(extents.begin(), {Dimension::numbers, rows});
    return model.graph.value(std::move(name), Element::ids, std::move(extents), Holder::batch);
}

ValueId GraphWriter::real(const std::string& name, Extent columns) {
    return model.graph.value(prefix_ + name, Element::real, {tokens(), columns});
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
    // A uniform distribution over ±b has the deviation b/√3.
    double scale = config_.init_scale * (uniform ? std::sqrt(3.0) : 1.0) * init.value;
    if (init.by_fan_in) scale /= std::sqrt(static_cast<double>(fan_in));
    return {uniform ? InitRule::Kind::uniform : InitRule::Kind::normal, static_cast<float>(scale)};
}

ParameterId GraphWriter::parameter(const std::string& name, const std::vector<Extent>& extents, InitRule init,
                                   int64_t matrices) {
    return model.table.declare(prefix_ + name, extents, init, matrices);
}

ParameterId GraphWriter::number(const std::string& name, double start) {
    return parameter(name, {{Dimension::numbers, 1}}, filled(start));
}

NormStatistics GraphWriter::statistics(const std::string& name) {
    const bool centred = parts_.norms.type == NormKind::layernorm;
    return {centred ? f32(name + "_mean", {tokens()}) : kNoValue, f32(name + "_rstd", {tokens()})};
}

ValueId GraphWriter::norm(const std::string& name, ValueId x) {
    const ValueId y = real(name, width());
    const NormStatistics kept = statistics(name);
    NormParameters parameters;
    if (parts_.norms.gain) parameters.gain = parameter(name + ".gain", {width()}, filled(1));
    if (parts_.norms.bias) parameters.bias = parameter(name + ".bias", {width()}, filled(0));
    add<Norm>({.y = y, .statistics = kept, .x = x, .parameters = parameters}, parts_.norms.type);
    return y;
}

ValueId GraphWriter::linear(const std::string& name, ValueId x, const Weight& w) {
    const ParameterId weight =
        parameter(name + ".weight", {w.outputs, w.inputs}, rule(w.init, w.inputs.size), w.matrices);
    const ParameterId bias = w.bias ? parameter(name + ".bias", {w.outputs}, filled(0)) : kNoParameter;
    const ValueId y = real(name, w.outputs);
    add<Linear>({.y = y, .x = x, .weight = weight, .bias = bias});
    return y;
}

ValueId GraphWriter::gate(const std::string& name, ValueId x, const Extent& gates, int64_t columns) {
    const ValueId y = f32(name, {tokens(), gates});
    const ParameterId weight = parameter(name + ".weight", {gates, {Dimension::numbers, columns}}, filled(0));
    add<Gate>({.y = y, .x = x, .weight = weight}, columns);
    return y;
}

ValueId GraphWriter::sum(const std::string& name, const Extent& columns,
                         const std::vector<WeightedSum::Term>& terms) {
    const ValueId y = real(name, columns);
    add<WeightedSum>({.y = y, .terms = terms}, batch.local_length());
    return y;
}

}  // namespace speedrun
