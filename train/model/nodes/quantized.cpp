#include "train/model/nodes/quantized.h"

namespace speedrun {

void Quantized::fill(const Call& call, const Tensor& x, float scale_of_x) const {
    round(call, {.x = x, .constant = scale_of_x});
}

void Quantized::fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how, const Tensor& amax) const {
    if (how.by == Fp8ScaleBy::constant) return fill(call, x, static_cast<float>(how.value));
    if (!by_last_step(call) && amax.present()) {
        call.ops.weighted_sum_forward(
            {.y = call(scale), .terms = {{{.source = amax, .factor = how.factor()}}}, .sequence_length = 1},
            call.stream);
    } else if (!by_last_step(call)) {
        call.ops.norm_term({.out = scale_in(call), .x = x, .norm = VectorNorm::infinity}, call.stream);
        call.ops.scale({.x = call(scale), .factor = how.factor()}, call.stream);
    }
    round(call, {.x = x});
}

void Quantized::fill_squares(const Call& call, const Squares& squares, const Fp8ScaleConfig& how) const {
    const float constant = how.by == Fp8ScaleBy::constant ? static_cast<float>(how.value) : 0.0f;
    round(call, {.x = squares.x, .constant = constant, .relu_squared = squares.relu_squared});
}

Tensor Quantized::scale_in(const Call& call) const {
    return by_last_step(call) ? call.scales->scale(kept) : call(scale).reshaped({1});
}

void Quantized::round(const Call& call, const Rounded& r) const {
    call.ops.quantize({.out = call(numbers),
                       .transposed = call(transposed),
                       .x = r.x,
                       .scale = scale_in(call),
                       .constant = r.constant,
                       .relu_squared = r.relu_squared,
                       .amax = kept >= 0 && call.scales ? call.scales->amax(kept) : Tensor{}},
                      call.stream);
}

}  // namespace speedrun
