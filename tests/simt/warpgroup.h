// Warpgroup matmuls of the executor, for kernels/cuda/blocks/wgmma.h. Until a thread has waited for a
// matmul's group, the sums are NaN, and the operands must not change.
#pragma once

#include "tests/simt/simt.h"

namespace speedrun::simt {

// Offset in the block's shared memory, which begins at a multiple of 1024.
uint32_t shared_offset(const void* shared);
void fence_shared_proxy();
void warpgroup_begin();
// Operands of 32 bytes of k in rows of k or, transposed (bf16 only), in rows of the other index.
struct OperandForm {
    bool a_transposed = false, b_transposed = false, e4m3 = false;
    bool operator==(const OperandForm&) const = default;
};
// sums [tiles][4]; a: registers (bf16), or null with a_matrix.
void warpgroup_multiply(float* sums, int tiles, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        OperandForm form, bool add, Where where = Where::current());
void warpgroup_commit();
void warpgroup_wait(int groups_in_flight);

}  // namespace speedrun::simt
