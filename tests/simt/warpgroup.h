// Warpgroup matmuls of the executor, for kernels/cuda/blocks/wgmma.h. Until a thread has waited for a
// matmul's group, the sums are NaN, and the operands must not change.
#pragma once

#include "tests/simt/simt.h"

namespace speedrun::simt {

// Offset in the block's shared memory, which begins at a multiple of 1024.
uint32_t shared_offset(const void* shared);
void fence_shared_proxy();
void warpgroup_begin();
// sums [tiles][4]; a: registers, or null with a_matrix; transposed: b is stored [k][column].
void warpgroup_multiply(float* sums, int tiles, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        bool transposed, bool add, Where where = Where::current());
void warpgroup_commit();
void warpgroup_wait(int groups_in_flight);

}  // namespace speedrun::simt
