#include "train/model/nodes/gate.h"

#include "train/model/graph/graph.h"

namespace speedrun {

Gate::Gate(const Ports& ports, int64_t columns)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      x_(reads({.value = ports.x, .gradient = Gives::added, .in_backward = true})),
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
    // The columns that the gate does not read get nothing from it.
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

NumberGate::NumberGate(const Ports& ports)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      one_(reads({.value = ports.one, .in_backward = true})),
      number_(uses(ports.number, true)) {}

void NumberGate::forward(const Call& call) const {
    call.ops.narrow_linear_forward({.y = call(y_).reshaped({1, 1}),
                                    .x = call(one_),
                                    .weight = call(number_).reshaped({1, 1}),
                                    .scale = 1,
                                    .activation = GateActivation::sigmoid},
                                   call.stream);
}

void NumberGate::backward(const Call& call) const {
    contribute(
        [&](const ParameterGradient& dnumber) {
            call.ops.narrow_linear_backward({.dweight = dnumber.tensor.reshaped({1, 1}),
                                             .dy = call.gradient(y_).reshaped({1, 1}),
                                             .y = call(y_).reshaped({1, 1}),
                                             .x = call(one_),
                                             .weight = call(number_).reshaped({1, 1}),
                                             .scale = 1,
                                             .activation = GateActivation::sigmoid,
                                             .accumulate_x = false,
                                             .accumulate = dnumber.adds},
                                            call.stream);
        },
        call.of(number_));
}

}  // namespace speedrun
