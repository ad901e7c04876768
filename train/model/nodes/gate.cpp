#include "train/model/nodes/gate.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

Gate::Gate(const Ports& ports, int64_t columns)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      columns_(columns) {}

std::string Gate::describe(const NodeGraph& graph) const {
    return fmt::format("sigmoid gate {} -> {} of {}", columns_, graph.width_of(value_of(y_)),
                       graph.local_name(value_of(x_)));
}

void Gate::forward(const Call& call) const {
    call.ops.narrow_linear_forward({.y = call(y_),
                                    .x = call(x_).column_slice(0, columns_),
                                    .weight = call(weight_),
                                    .scale = 1,
                                    .activation = GateActivation::sigmoid},
                                   call.stream);
}

void Gate::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    // The gradient is zero in columns that the gate does not read.
    if (dx.tensor.present() && !dx.adds) call.ops.fill({.x = dx.tensor, .value = 0}, call.stream);
    contribute(
        [&](const ParameterGradient& dw) {
            call.ops.narrow_linear_backward(
                {.dx = dx.tensor.present() ? dx.tensor.column_slice(0, columns_) : Tensor{},
                 .dweight = dw.tensor,
                 .dy = call.gradient(y_),
                 .y = call(y_),
                 .x = call(x_).column_slice(0, columns_),
                 .weight = call(weight_),
                 .scale = 1,
                 .activation = GateActivation::sigmoid,
                 .accumulate_x = true,
                 .accumulate = dw.adds},
                call.stream);
        },
        call.of(weight_));
}

TokenFactors::TokenFactors(const Ports& ports, float scale)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      bias_(uses(ports.bias, false)),
      scale_(scale) {}

std::string TokenFactors::describe(const NodeGraph& graph) const {
    return fmt::format("numbers {} -> {}", graph.width_of(value_of(x_)), graph.width_of(value_of(y_)));
}

void TokenFactors::forward(const Call& call) const {
    call.ops.narrow_linear_forward({.y = call(y_),
                                    .x = call(x_),
                                    .weight = call(weight_),
                                    .bias = call(bias_),
                                    .scale = scale_,
                                    .activation = GateActivation::identity},
                                   call.stream);
}

void TokenFactors::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    // The operation accumulates either both parameter gradients or neither.
    contribute(
        [&](const ParameterGradient& dw, const ParameterGradient& db) {
            call.ops.narrow_linear_backward({.dx = dx.tensor,
                                             .dweight = dw.tensor,
                                             .dbias = db.tensor,
                                             .dy = call.gradient(y_),
                                             .y = call(y_),
                                             .x = call(x_),
                                             .weight = call(weight_),
                                             .scale = scale_,
                                             .activation = GateActivation::identity,
                                             .accumulate_x = dx.adds,
                                             .accumulate = dw.adds},
                                            call.stream);
        },
        call.of(weight_), call.of(bias_));
}

OwnFactors::OwnFactors(const Ports& ports, int64_t first_column)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added})),
      first_column_(first_column) {}

void OwnFactors::forward(const Call& call) const {
    const Tensor y = call(y_);
    copy_rows(call, y, call(x_).column_slice(first_column_, y.cols()));
}

void OwnFactors::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    const Tensor dy = call.gradient(y_);
    if (!dx.adds) call.ops.fill({.x = flat(dx.tensor), .value = 0}, call.stream);
    const Tensor own = dx.tensor.column_slice(first_column_, dy.cols());
    call.ops.add({.y = own, .x = own, .z = dy}, call.stream);
}

FactorGate::FactorGate(const Ports& ports, GateActivation activation)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      one_(reads({.value = ports.one, .in_backward = true})),
      number_(uses(ports.number, true)),
      activation_(activation) {}

void FactorGate::forward(const Call& call) const {
    call.ops.narrow_linear_forward({.y = call(y_).reshaped({1, 1}),
                                    .x = call(one_),
                                    .weight = call(number_).reshaped({1, 1}),
                                    .scale = 1,
                                    .activation = activation_},
                                   call.stream);
}

void FactorGate::backward(const Call& call) const {
    contribute(
        [&](const ParameterGradient& dnumber) {
            call.ops.narrow_linear_backward({.dweight = dnumber.tensor.reshaped({1, 1}),
                                             .dy = call.gradient(y_).reshaped({1, 1}),
                                             .y = call(y_).reshaped({1, 1}),
                                             .x = call(one_),
                                             .weight = call(number_).reshaped({1, 1}),
                                             .scale = 1,
                                             .activation = activation_,
                                             .accumulate_x = false,
                                             .accumulate = dnumber.adds},
                                            call.stream);
        },
        call.of(number_));
}

}  // namespace speedrun
