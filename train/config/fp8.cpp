#include "train/config/fp8.h"

#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

void Fp8ScaleConfig::fields(FieldVisitor& v) {
    v.choice(
        "by", by,
        "constant: value itself; amax: value times the largest magnitude among the numbers at hand, over 448, the "
        "largest of e4m3. Of what a rank has: its own rows, its own part of a matrix; last_step: the same of the step "
        "before, of all its microbatches and all ranks, which takes no pass of its own and is one number everywhere");
    v.field("value", value, "constant: the scale; amax, last_step: a factor, above 1 for room",
            {1e-12, 1e12});
    v.field(
        "exact_steps", exact_steps,
        "last_step alone: so many steps at the start of the run go by amax, while magnitudes change fast; 0: the first "
        "step's scale is 1",
        {0, 1e9});
}

void LinearFp8Config::fields(FieldVisitor& v) {
    v.section("x", "scale of what is multiplied by the matrix", [this](FieldVisitor& s) { x.fields(s); });
    v.section("weight", "scale of the matrix", [this](FieldVisitor& s) { weight.fields(s); });
}

void HeadFp8Config::fields(FieldVisitor& v) {
    v.field(
        "x_scale", x_scale,
        "what the head reads is divided by this and rounded to e4m3; 0: sqrt(model.model_dim)/448, which no normed row "
        "exceeds",
        {0, 1e12});
    v.field("weight_scale", weight_scale, "its matrix is divided by this and rounded to e4m3", {1e-12, 1e12});
    v.field(
        "gradient_scale", gradient_scale,
        "gradients of logits, those of the sum of a step's losses, are divided by this and rounded to e5m2",
        {1e-12, 1e12});
}

float HeadFp8Config::scale_of_x(int64_t width) const {
    const double root = std::sqrt(static_cast<double>(width)) / static_cast<double>(E4m3::kLargest);
    return static_cast<float>(x_scale > 0 ? x_scale : root);
}

void expect_fp8_width(const std::string& key, int64_t model_dim) {
    if (model_dim % 16 != 0)
        throw_usage("{}: products of 8-bit numbers need a model.model_dim that 16 divides, not {}", key,
                    model_dim);
}

}  // namespace speedrun
