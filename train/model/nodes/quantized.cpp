#include "train/model/nodes/quantized.h"

namespace speedrun {

void Quantized::fill(const Call& call, const Tensor& x, float scale_of_x) const {
    call.ops.fill({.x = call(scale), .value = scale_of_x}, call.stream);
    round(call, x);
}

void Quantized::fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how) const {
    const auto value = static_cast<float>(how.value);
    if (how.by == Fp8ScaleBy::constant) return fill(call, x, value);
    call.ops.norm_term({.out = scale_in(call), .x = x, .norm = VectorNorm::infinity}, call.stream);
    call.ops.scale({.x = call(scale), .factor = value / E4m3::kLargest}, call.stream);
    round(call, x);
}

void Quantized::round(const Call& call, const Tensor& x) const {
    call.ops.quantize({.out = call(numbers), .transposed = call(transposed), .x = x, .scale = scale_in(call)},
                      call.stream);
}

}  // namespace speedrun
