// Descriptions of matrices for bulk copies (bulk_copy.h): the driver's tensor map, or the host executor's.
#pragma once

#include "kernels/cuda/blocks/launch.h"
#include "kernels/device/tensor.h"

namespace speedrun {

#if SPEEDRUN_SIMT
using simt::TensorMap;
#else
// CUtensorMap of the driver. A kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};
#endif

// Returns the map of x (bf16 or fp8 [T,C]) as T / sequence_length sequences of rows. Boxes have columns of 128 bytes and box_rows ≤ 256
// rows, and the layout of tile.cuh's Panels. x.data and the rows are aligned to 16 bytes. Throws an internal error if the driver refuses
// it.
TensorMap map_rows(const Tensor& x, int64_t sequence_length, int box_rows, Stream& stream);

}  // namespace speedrun
