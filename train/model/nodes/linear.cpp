#include "train/model/nodes/linear.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

Linear::Linear(const Ports& ports, const Options& options)
    : Node(Cost::product),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added, .in_backward = true})),
      x_amax_(reads({.value = ports.x_amax})),
      addend_(reads({.value = ports.addend, .gradient = GradientRule::passed})),
      weight_(uses(ports.weight, true)),
      bias_(uses(ports.bias, ports.factor != kNoParameter)),
      factor_(uses(ports.factor, true)),
      options_(options) {
    if (factor_.index >= 0) {
        const auto scaled = [&](int64_t columns, Element element) {
            const auto last = [&](bool needed) {
                return needed ? needs({.rows = options.scaled,
                                       .columns = columns,
                                       .forward = false,
                                       .backward = true,
                                       .element = Element::f32})
                              : Tmp{};
            };
            return ScaledRows{.count = options.scaled,
                              .scaled = needs({.rows = options.outputs,
                                               .columns = columns,
                                               .forward = true,
                                               .backward = element != Element::f32,
                                               .element = element}),
                              .gradient = last(true),
                              .unrounded = last(element != Element::f32)};
        };
        scaled_weight_ = scaled(options.inputs, Element::compute_dtype);
        if (bias_.index >= 0) scaled_bias_ = scaled(1, Element::f32);
    }
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
    return fmt::format("linear {} -> {}{}{}{}{}", graph.width_of(value_of(x_)), graph.width_of(value_of(y_)),
                       bias_.index >= 0 ? ", bias" : "", options_.fp8 ? ", forward in fp8" : "",
                       has_addend() ? ", added to the stream" : "",
                       factor_.index >= 0 ? fmt::format(", c x the last {}", options_.scaled) : "");
}

Tensor Linear::weight_of(const Call& call) const {
    if (factor_.index < 0) return call(weight_);
    return scaled_weight_.scale(call, {.rows = call(weight_), .factor = call(factor_)});
}

Tensor Linear::bias_of(const Call& call) const {
    const Tensor bias = call(bias_);
    if (factor_.index < 0 || !bias.present()) return bias;
    const int64_t outputs = bias.numel();
    return scaled_bias_.scale(call, {.rows = bias.reshaped({outputs, 1}), .factor = call(factor_)})
        .reshaped({outputs});
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
                     .b = weight_of(call),
                     .bias = options_.adds_bias ? bias_of(call) : Tensor{},
                     .transpose_b = true,
                     .addend = call(addend_),
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
    weight8_.fill(call, weight_of(call), options_.fp8->weight);
    call.ops.scaled_matmul({.c = call(y_),
                            .a = call(x8_.numbers),
                            .b = call(weight8_.numbers),
                            .scale_a = x8_.scale_in(call),
                            .scale_b = weight8_.scale_in(call),
                            .addend = call(addend_),
                            .epilogue = epilogue},
                           call.stream);
}

// Parameters first, so that the matmul of dx overlaps with their reduction.
void Linear::backward(const Call& call) const {
    backward_parameters(call);
    backward_input(call);
}

// dx (+)= dy W
void Linear::backward_input(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (!dx.tensor.present()) return;
    call.ops.matmul({.c = dx.tensor, .a = call.gradient(y_), .b = weight_of(call), .accumulate = dx.adds},
                    call.stream);
}

void Linear::backward_input_then(const op::Epilogue& epilogue, const Tensor& dx, const Call& call) const {
    if (!dx.present()) return;
    call.ops.matmul({.c = dx, .a = call.gradient(y_), .b = weight_of(call), .epilogue = epilogue},
                    call.stream);
}

// dW = dyᵀ x, db = Σ dy
void Linear::backward_parameters(const Call& call) const {
    if (factor_.index >= 0) return backward_scaled(call);
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

void Linear::backward_scaled(const Call& call) const {
    const Tensor dy = call.gradient(y_), factor = call(factor_), bias = call(bias_);
    const auto columns = [&](const ScaledRows::Product& part) {
        return dy.column_slice(part.first, part.gradient.rows());
    };
    contribute(
        [&](const ParameterGradient& dw, const ParameterGradient& db, const ParameterGradient& dfactor) {
            scaled_weight_.add_gradients(call, {.rows = call(weight_), .factor = factor},
                                         {.rows = dw, .factor = dfactor},
                                         [&](const ScaledRows::Product& part) {
                                             call.ops.matmul({.c = part.gradient,
                                                              .a = columns(part),
                                                              .b = call(x_),
                                                              .transpose_a = true,
                                                              .accumulate = part.accumulate},
                                                             call.stream);
                                         });
            if (!bias.present()) return;
            const auto column = [](const Tensor& vector) { return vector.reshaped({vector.numel(), 1}); };
            scaled_bias_.add_gradients(
                call, {.rows = column(bias), .factor = factor},
                {.rows = {.tensor = column(db.tensor), .adds = db.adds},
                 .factor = {.tensor = dfactor.tensor, .adds = true}},
                [&](const ScaledRows::Product& part) {
                    call.ops.column_sum(
                        {.out = flat(part.gradient), .x = columns(part), .accumulate = part.accumulate},
                        call.stream);
                });
        },
        call.of(weight_), call.of(bias_), call.of(factor_));
}

}  // namespace speedrun
