// Arithmetic of all reductions on host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/dtype.h"
#include "train/comm/collective.h"

namespace speedrun {

// sum: output[e] <- inputs[0][e] + inputs[1][e] + ..., from left to right in f32, rounded once.
// max: output[e] <- the largest of inputs[·][e], f32 and not negative; NaN if any is NaN.
// `output` may be one of the inputs. All have `count` elements of `dtype`, f32 or bf16.
void ordered_reduction(Reduction reduction, void* output, const std::vector<const void*>& inputs,
                       int64_t count, DType dtype);

}  // namespace speedrun
