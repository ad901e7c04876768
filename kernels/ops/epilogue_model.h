// Modelled time of a matmul with an addend or an epilogue (op::Epilogue) on a GPU: the library's matmul, with a pass over its result
// for an epilogue, or our matmul for compute capability 9.0, which applies both to its sums.
#pragma once

#include "kernels/ops/gpu_models.h"

namespace speedrun {

// As model_call(). share_of_bound: of the matmul without its epilogue.
ModelledCall model_epilogue(const OpCost& cost, DType compute_dtype, const GpuModel& gpu,
                            const KernelModel& kernel, double share_of_bound = 0);

// Time of our matmul, c in bf16, without its gap. operands: bf16 or FP8.
double wgmma_matmul_ms(const op::ProductShape& product, DType operands, const GpuModel& gpu);
extern const char* const kWgmmaMatmulSource;

// The rule of cuda.products "wgmma", in plans and in runs. Returns true if, on an H100, our matmul is modelled to take less time
// than the library's matmul and a pass.
bool wgmma_matmul_wins(const op::ProductShape& product, DType operands);

}  // namespace speedrun
