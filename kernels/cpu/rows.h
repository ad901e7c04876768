// Address of a row of a tensor.
#pragma once

#include <cstdint>

#include "kernels/device/tensor.h"

namespace speedrun::cpu {

// Row t of x, or null if x is absent.
template <class Real>
Real* row_of(const Tensor& x, int64_t t) {
    return x.present() ? x.as<Real>() + t * x.row_stride : nullptr;
}

// x[t, first_column], the start of a head. x must be present.
template <class Real>
Real* head_of(const Tensor& x, int64_t t, int64_t first_column) {
    return x.as<Real>() + t * x.row_stride + first_column;
}

}  // namespace speedrun::cpu
