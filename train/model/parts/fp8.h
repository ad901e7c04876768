// FP8 matmuls of training: scales that divide the operands before rounding.
#pragma once

#include <string>

#include "kernels/device/dtype.h"
#include "train/config/choices.h"
#include "train/fields/field_visitor.h"

namespace speedrun {

// Scaling of an FP8 operand: constant, current (amax) or delayed (last_step).
enum class Fp8ScaleBy : uint8_t { constant, current, delayed };
template <>
inline constexpr Word<Fp8ScaleBy> kWords<Fp8ScaleBy>[] = {
    {"constant", Fp8ScaleBy::constant}, {"amax", Fp8ScaleBy::current}, {"last_step", Fp8ScaleBy::delayed}};

struct Fp8ScaleConfig {
    Fp8ScaleBy by = Fp8ScaleBy::current;
    double value = 1;
    int64_t exact_steps = 16;  // steps, for last_step
    // Returns scale/amax for e4m3.
    float factor() const { return static_cast<float>(value) / E4m3::kLargest; }
    void fields(FieldVisitor& v);
};

// y = x Wᵀ in training's forward: both operands e4m3.
struct LinearFp8Config {
    Fp8ScaleConfig x, weight;
    void fields(FieldVisitor& v);
};

// All three matmuls of the head in training: x and W in e4m3, gradients of logits in e5m2. Scales are constants, so that
// results do not depend on the number of logits per chunk.
struct HeadFp8Config {
    double x_scale = 0, weight_scale = 1.0 / 512, gradient_scale = 1.0 / 448;
    // Default: √width/448, because no element of a row of mean square 1 exceeds √width.
    float scale_of_x(int64_t width) const;
    void fields(FieldVisitor& v);
};

// Throws a usage error unless model_dim is a multiple of 16: FP8 tensor cores read rows in units of 16 bytes.
void expect_fp8_width(const std::string& key, int64_t model_dim);

}  // namespace speedrun
