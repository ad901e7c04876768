// Products of 8-bit numbers in training: which scales divide their operands before these are rounded.
#pragma once

#include <string>

#include "kernels/device/dtype.h"
#include "train/config/choices.h"
#include "train/fields/field_visitor.h"

namespace speedrun {

struct Fp8ScaleConfig {
    Fp8ScaleBy by = Fp8ScaleBy::amax;
    double value = 1;
    int64_t exact_steps = 16;  // of last_step
    // By which a largest magnitude becomes a scale of e4m3.
    float factor() const { return static_cast<float>(value) / E4m3::kLargest; }
    void fields(FieldVisitor& v);
};

// y = x Wᵀ in training's forward: both operands e4m3.
struct LinearFp8Config {
    Fp8ScaleConfig x, weight;
    void fields(FieldVisitor& v);
};

// All three products of the head in training: x and W e4m3, gradients of logits e5m2. Scales are constants, so that nothing
// depends on how many rows of logits are computed at once.
struct HeadFp8Config {
    double x_scale = 0, weight_scale = 1.0 / 512, gradient_scale = 1.0 / 448;
    // No element of a row of mean square 1 is larger than the root of its length.
    float scale_of_x(int64_t width) const;
    void fields(FieldVisitor& v);
};

// Throws a usage error for a model whose rows tensor cores do not take, 16 bytes at a time.
void expect_fp8_width(const std::string& key, int64_t model_dim);

}  // namespace speedrun
