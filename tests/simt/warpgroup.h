// What kernels/cuda/blocks/wgmma.h is made of in the executor: products of a warpgroup. Until a thread has waited for
// a product's group, the sums are NaN, and its operands may not change.
#pragma once

#include "tests/simt/simt.h"

namespace speedrun::simt {

// In the block's shared memory, which begins at a multiple of 1024.
uint32_t shared_offset(const void* shared);
void publish_shared();
void warpgroup_begin();
// sums [tiles][4]; a: registers, or null and a_matrix; transposed: b lies as [k][column].
void warpgroup_multiply(float* sums, int tiles, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        bool transposed, bool add, Where where = Where::current());
void warpgroup_commit();
void warpgroup_wait(int groups_in_flight);

}  // namespace speedrun::simt
