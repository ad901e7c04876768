#include "train/model/nodes/quantized.h"

namespace speedrun {

void Quantized::fill(const Call& call, const Tensor& x, float scale_of_x) const {
    round(call, x, scale_of_x);
}

void Quantized::fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how, const Tensor& amax) const {
    if (how.by == Fp8ScaleBy::constant) return fill(call, x, static_cast<float>(how.value));
    if (!by_last_step(call) && amax.present()) {
        call.ops.weighted_sum_forward(
            {.y = call(scale), .terms = {{{.source = amax, .factor = how.factor()}}}, .sequence_length = 1},
            call.stream);
    } else if (!by_last_step(call)) {
        call.ops.norm_term({.pieces = {{.out = scale_in(call), .x = x}}, .norm = VectorNorm::infinity},
                           call.stream);
        call.ops.scale({.x = call(scale), .factor = how.factor()}, call.stream);
    }
    round(call, x, 0);
}

op::Epilogue Quantized::epilogue(const Call& call, const Fp8ScaleConfig& how) const {
    return {.relu_squared = true,
            .quantized = call(numbers),
            .scale = scale_in(call),
            .constant = how.by == Fp8ScaleBy::constant ? static_cast<float>(how.value) : 0.0f,
            .amax = amax_in(call)};
}

Tensor Quantized::scale_in(const Call& call) const {
    return by_last_step(call) ? call.scales->scale(kept) : call(scale).reshaped({1});
}

void Quantized::round(const Call& call, const Tensor& x, float constant) const {
    call.ops.quantize({.out = call(numbers),
                       .transposed = call(transposed),
                       .x = x,
                       .scale = scale_in(call),
                       .constant = constant,
                       .amax = amax_in(call)},
                      call.stream);
}

}  // namespace speedrun
