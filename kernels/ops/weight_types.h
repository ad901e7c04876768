// Dispatch on the dtypes of an optimizer's weights, common to all backends.
#pragma once

#include "kernels/device/tensor.h"

namespace speedrun {

// Calls body.template operator()<Master, Real>(). A bf16 master has no copy of another dtype, because a copy would be
// equal; check() rejects all other combinations.
template <class Body>
void with_weights(const Tensor& master, const Tensor& parameter, Body&& body) {
    if (master.dtype == DType::bf16) return body.template operator()<Bf16, Bf16>();
    if (parameter.dtype == DType::bf16) return body.template operator()<float, Bf16>();
    body.template operator()<float, float>();
}

}  // namespace speedrun
