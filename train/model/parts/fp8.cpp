#include "train/model/parts/fp8.h"

#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

void Fp8ScaleConfig::fields(FieldVisitor& v) {
    v.choice(
        "by", by,
        "scaling of the operand; constant: the scale is value; amax: current scaling, value * amax/448 over the rank's own "
        "elements (448: largest e4m3); last_step: delayed scaling, amax of the last step over all microbatches and ranks");
    v.field("value", value, "scale if by is constant, else factor of the scale; above 1: headroom",
            {1e-12, 1e12});
    v.field(
        "exact_steps", exact_steps,
        "first steps of the run with current scaling (amax) if by is last_step; 0: the scale of the first step is 1",
        {0, 1e9});
}

void LinearFp8Config::fields(FieldVisitor& v) {
    v.section("x", "scale of the input of the layer", [this](FieldVisitor& s) { x.fields(s); });
    v.section("weight", "scale of the matrix", [this](FieldVisitor& s) { weight.fields(s); });
}

void HeadFp8Config::fields(FieldVisitor& v) {
    v.field(
        "x_scale", x_scale,
        "scale that divides the head's input before rounding to e4m3; 0: sqrt(model.model_dim)/448, which covers every "
        "normed row",
        {0, 1e12});
    v.field("weight_scale", weight_scale, "scale that divides the head's matrix before rounding to e4m3",
            {1e-12, 1e12});
    v.field(
        "gradient_scale", gradient_scale,
        "scale that divides the gradients of the logits (of the sum of a step's losses) before rounding to e5m2",
        {1e-12, 1e12});
}

float HeadFp8Config::scale_of_x(int64_t width) const {
    const double root = std::sqrt(static_cast<double>(width)) / static_cast<double>(E4m3::kLargest);
    return static_cast<float>(x_scale > 0 ? x_scale : root);
}

void expect_fp8_width(const std::string& key, int64_t model_dim) {
    if (model_dim % 16 != 0)
        throw_usage("{}: FP8 matmuls need a multiple of 16 as model.model_dim, got {}", key, model_dim);
}

}  // namespace speedrun
