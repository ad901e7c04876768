// Tensor maps by the driver's encoder, which is looked up through the runtime.
#include "kernels/cuda/blocks/tensor_map.h"

#include <cuda.h>

#include <cstring>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/driver_function.h"

namespace speedrun {

TensorMap map_rows(const Tensor& x, int64_t sequence_length, int box_rows, Stream& stream) {
    TensorMap map{};
    if (static_cast<CudaStream&>(stream).dry()) return map;
    static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
    static const auto encode = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    const bool bytes = size_of(x.dtype) == 1;
    const cuuint64_t row_bytes = static_cast<cuuint64_t>(x.row_stride * size_of(x.dtype));
    const auto length = static_cast<cuuint64_t>(sequence_length);
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols()), length,
                                static_cast<cuuint64_t>(x.rows()) / length};
    const cuuint64_t strides[] = {row_bytes, row_bytes * length};
    const cuuint32_t box[] = {bytes ? 128u : 64u, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
    CUtensorMap encoded;
    const CUresult result =
        encode(&encoded, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, x.data,
               sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        throw_internal("cuTensorMapEncodeTiled: error {} for {} with rows {} elements apart",
                       static_cast<int>(result), x.describe(), x.row_stride);
    std::memcpy(map.bytes, &encoded, sizeof encoded);
    return map;
}

}  // namespace speedrun
