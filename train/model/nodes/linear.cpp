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
    const Tensor y = call(y_), x = call(x_);
    call.by_rows(y.rows(), [&](const RowSpan& rows) {
        call.ops.matmul({.c = y.row_slice(rows.first, rows.count),
                         .a = x.row_slice(rows.first, rows.count),
                         .b = call(weight_),
                         .bias = adds_bias_ ? call(bias_) : Tensor{},
                         .transpose_b = true},
                        call.stream);
    });
}

// Parameters first, so that their reduction can start while dx is computed; unless dx is wanted on other ranks, or comes
// of rows that are still on their way.
void Linear::backward(const Call& call) const {
    if (!call.rows_travel()) {
        give_parameters(call);
        give_inputs(call);
        return;
    }
    give_inputs(call);
    give_parameters(call);
}

// dx = dy W
void Linear::give_inputs(const Call& call) const {
    const Tensor dy = call.gradient(y_), dx = call.gradient(x_).tensor;
    if (!dx.present()) return call.await_rows();
    call.by_rows(dx.rows(), [&](const RowSpan& rows) {
        call.ops.matmul({.c = dx.row_slice(rows.first, rows.count),
                         .a = dy.row_slice(rows.first, rows.count),
                         .b = call(weight_)},
                        call.stream);
    });
}

// dW = dyᵀ x, db = Σ dy
void Linear::give_parameters(const Call& call) const {
    const Tensor dy = call.gradient(y_);
    contribute(
        [&](const ParameterGradient& dw) {
            call.ops.matmul(
                {.c = dw.tensor, .a = dy, .b = call(x_), .transpose_a = true, .accumulate = dw.adds},
                call.stream);
        },
        call.of(weight_));
    if (bias_.index < 0) return;
    contribute(
        [&](const ParameterGradient& db) {
            call.ops.column_sum({.out = db.tensor, .x = dy, .accumulate = db.adds}, call.stream);
        },
        call.of(bias_));
}

}  // namespace speedrun
