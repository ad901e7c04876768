// Bulk copies, their barriers and named barriers of the executor, for kernels/cuda/blocks/bulk_copy.h. The destination of a bulk copy
// is poisoned when it starts. Its bytes arrive as late as possible: when a thread waits for a barrier that only lacks them.
//
// Ends the launch with an error: a barrier used before init(), or before publish() and a block barrier by another thread; more
// arrivals than init() states; more bytes than expected; a copy into bytes of a copy in flight; a matmul that reads them; copies in
// flight at the end of a block; threads that wait for a phase that cannot complete.
#pragma once

#include "kernels/device/dtype.h"
#include "tests/simt/simt.h"

namespace speedrun::simt {

// Matrices [sequences][rows][columns] of bf16 or FP8, read in boxes of 128 bytes of columns.
struct TensorMap {
    static constexpr int kBoxRowBytes = 128;
    const std::byte* data;
    int element_bytes;
    int64_t columns, rows, sequences;
    int64_t row_stride, sequence_stride;  // elements
    int box_rows;
    int box_bytes() const { return box_rows * kBoxRowBytes; }
};
struct BoxAt {
    int64_t column, row, sequence;
};

void mbarrier_init(uint64_t* barrier, int arrivals, Where where = Where::current());
void mbarrier_publish(Where where);
void mbarrier_arrive(uint64_t* barrier, Where where);
void mbarrier_expect(uint64_t* barrier, int bytes, Where where);  // arrives, too
void mbarrier_wait(uint64_t* barrier, int parity, Where where);
void copy_box(void* tile, const TensorMap& map, uint64_t* barrier, const BoxAt& at, Where where);

void named_barrier(int id, int threads, bool waits, Where where);
void named_turn(int id, int threads, bool waits, Where where);  // orders no accesses for a watch
// A hint: only its rules are checked.
void warpgroup_registers(int count, bool increase, Where where = Where::current());

}  // namespace speedrun::simt
