// Types that an optimizer's step finds its weights in, switched once for every backend.
#pragma once

#include "kernels/device/tensor.h"

namespace speedrun {

// Calls body.template operator()<Master, Real>(). A copy of a bf16 master would be the same numbers, so that there is
// none of another type; the checks of an operation refuse all else.
template <class Body>
void with_weights(const Tensor& master, const Tensor& parameter, Body&& body) {
    if (master.dtype == DType::bf16) return body.template operator()<Bf16, Bf16>();
    if (parameter.dtype == DType::bf16) return body.template operator()<float, Bf16>();
    body.template operator()<float, float>();
}

}  // namespace speedrun
