#include "train/model/nodes/linear.h"

#include "train/model/graph/graph.h"

namespace speedrun {

Linear::Linear(const Ports& ports, const Options& options)
    : Node(Cost::product),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::written, .in_backward = true})),
      x_amax_(reads({.value = ports.x_amax})),
      weight_(uses(ports.weight, true)),
      bias_(uses(ports.bias, false)),
      options_(options) {
    if (!options.fp8) return;
    const auto quantized = [&](int64_t rows, int kept) {
        return Quantized{
            .numbers = needs({.rows = rows,
                              .columns = options.inputs,
                              .forward = true,
                              .backward = false,
                              .element = Element::e4m3}),
            .transposed = {},
            .scale =
                needs({.rows = 1, .columns = 1, .forward = true, .backward = false, .element = Element::f32}),
            .kept = kept};
    };
    x8_ = quantized(options.rows, options.kept_x);
    weight8_ = quantized(options.outputs, options.kept_weight);
}

std::string Linear::describe(const NodeGraph& graph) const {
    return fmt::format("linear {} -> {}{}{}", graph.width_of(value_of(x_)), graph.width_of(value_of(y_)),
                       bias_.index >= 0 ? ", bias" : "", options_.fp8 ? ", forward in fp8" : "");
}

void Linear::forward(const Call& call) const {
    forward_then({}, call);
}

void Linear::forward_then(const op::Epilogue& epilogue, const Call& call) const {
    const Tensor y = call(y_), x = call(x_);
    if (options_.fp8 && call.pass.training) {
        x8_.fill(call, x, options_.fp8->x, call(x_amax_));
        return multiply_by_fp8(epilogue, call);
    }
    call.ops.matmul({.c = y,
                     .a = x,
                     .b = call(weight_),
                     .bias = options_.adds_bias ? call(bias_) : Tensor{},
                     .transpose_b = true,
                     .epilogue = epilogue},
                    call.stream);
}

bool Linear::knows_scale(const Call& call) const {
    return options_.fp8 && call.pass.training && x8_.known(call, options_.fp8->x);
}

op::Epilogue Linear::quantizing(const Call& call) const {
    return x8_.epilogue(call, options_.fp8->x);
}

// x must be quantized.
void Linear::multiply_by_fp8(const op::Epilogue& epilogue, const Call& call) const {
    weight8_.fill(call, call(weight_), options_.fp8->weight);
    call.ops.scaled_matmul({.c = call(y_),
                            .a = call(x8_.numbers),
                            .b = call(weight8_.numbers),
                            .scale_a = x8_.scale_in(call),
                            .scale_b = weight8_.scale_in(call),
                            .epilogue = epilogue},
                           call.stream);
}

// Parameters first, so that the matmul of dx overlaps with their reduction.
void Linear::backward(const Call& call) const {
    backward_parameters(call);
    backward_input(call);
}

void Linear::backward_input_then(const op::Epilogue& epilogue, const Tensor& dx, const Call& call) const {
    if (!dx.present()) return;
    call.ops.matmul({.c = dx, .a = call.gradient(y_), .b = call(weight_), .epilogue = epilogue}, call.stream);
}

// dW = dyᵀ x, db = Σ dy
void Linear::backward_parameters(const Call& call) const {
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
