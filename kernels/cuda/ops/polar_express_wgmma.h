// Polar Express by wgmma, for compute capability 9.0, implemented by polar_express_wgmma.cu.
#pragma once

#include <functional>

#include "kernels/device/device.h"
#include "kernels/ops/optimizer.h"

namespace speedrun {

// out = x, each matrix divided by its norm: [n,R,C].
using PolarNormalize = std::function<void(const Tensor& out, const Tensor& x)>;

// True if polar_express_wgmma() has kernels for matrices of this type, size and alignment.
bool fits_polar_express_wgmma(const Tensor& x, const Tensor& workspace);
void polar_express_wgmma(const op::PolarExpress& call, const PolarNormalize& normalize, Stream& stream);

}  // namespace speedrun
