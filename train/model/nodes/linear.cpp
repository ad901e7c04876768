#include "train/model/nodes/linear.h"

#include "train/model/graph/graph.h"

namespace speedrun {

Linear::Linear(const Ports& ports, bool adds_bias)
    : Node(Cost::product),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = Gives::written, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      bias_(uses(ports.bias, false)),
      adds_bias_(adds_bias) {}

std::string Linear::describe(const NodeGraph& graph) const {
    return fmt::format("linear {} -> {}{}", graph.width_of(value_of(x_)), graph.width_of(value_of(y_)),
                       bias_.index >= 0 ? ", bias" : "");
}

void Linear::forward(const Call& call) const {
    call.ops.matmul({.c = call(y_),
                     .a = call(x_),
                     .b = call(weight_),
                     .bias = adds_bias_ ? call(bias_) : Tensor{},
                     .transpose_b = true},
                    call.stream);
}

// dW = dyᵀ x and db = Σ dy before dx = dy W: their reduction can start while dx is computed.
void Linear::backward(const Call& call) const {
    const Tensor dy = call.gradient(y_);
    contribute(
        [&](const ParameterGradient& dw) {
            call.ops.matmul(
                {.c = dw.tensor, .a = dy, .b = call(x_), .transpose_a = true, .accumulate = dw.adds},
                call.stream);
        },
        call.of(weight_));
    if (bias_.index >= 0) {
        contribute(
            [&](const ParameterGradient& db) {
                call.ops.column_sum({.out = db.tensor, .x = dy, .accumulate = db.adds}, call.stream);
            },
            call.of(bias_));
    }
    const ValueGradient dx = call.gradient(x_);
    if (dx.tensor.present()) call.ops.matmul({.c = dx.tensor, .a = dy, .b = call(weight_)}, call.stream);
}

}  // namespace speedrun
