// A matrix of 8-bit numbers, transposed inside the kernel that writes it a block a row. Rows are read again while the second level
// of cache still has them, so that device memory sees each number written twice and never read.
//
// Rows are counted by groups; the block whose row is the last of its group to be finished moves all of the group. Nobody waits for
// another block, so blocks may run in any order and as few at a time as the GPU likes, and a word of the counts is the business of
// 32 blocks: where all blocks took pieces by one ticket, the loss of 32,768 x 50,304 took 21.6 ms on an H100, 3.4 without this.
#pragma once

#include <algorithm>

#include "kernels/cuda/blocks/launch.h"
#include "kernels/cuda/blocks/vector.cuh"

namespace speedrun {

struct FinishedRows {
    // Rows of a group, and those of it that a thread moves, in so many columns.
    static constexpr int kGroup = 32, kHalf = 16, kColumns = 4;
    static constexpr int64_t kSharedBytes = 16;  // of the block, from the start

    Rows<E5m2> x, transposed;
    int rows = 0, cols = 0;      // the former in halves, the latter in units of kColumns
    uint32_t* counts = nullptr;  // of the finished rows of each group; all 0 before the launch

    static int64_t num_groups(int64_t rows) { return (rows + kGroup - 1) / kGroup; }

    // By all threads, after the block's row has been written.
    __device__ __forceinline__ void finish(int64_t row) const {
        const auto is_last = shared_memory<uint32_t>(0, 1);
        const int group = static_cast<int>(row / kGroup), first = group * kGroup;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();  // the row, before its count
            const uint32_t before = atomicAdd(&counts[group], 1u);
            __threadfence();  // and the others' counts, before their rows are read
            *is_last = before + 1 == static_cast<uint32_t>(min(kGroup, rows - first)) ? 1u : 0u;
        }
        __syncthreads();
        if (*is_last == 0) return;
        const int row_of_half = first + static_cast<int>(threadIdx.x) % 2 * kHalf;
        const int columns = kColumns * static_cast<int>(blockDim.x) / 2;  // that all threads move at once
        if (row_of_half >= rows) return;
        for (int col = kColumns * (static_cast<int>(threadIdx.x) / 2); col < cols; col += columns)
            move(row_of_half, col);
    }

  private:
    // Two threads side by side move the halves of the group's rows, in the same columns: their numbers of a column are a sector.
    static_assert(kGroup == 2 * kHalf);
    __device__ __forceinline__ void move(int row, int col) const {
        uint32_t words[kHalf];  // four columns of each row, then four rows of each column in turns
        const E5m2* from = x.at(row, col);
#pragma unroll
        for (int i = 0; i < kHalf; ++i, from += x.stride)
            words[i] = __ldcg(reinterpret_cast<const uint32_t*>(from));
#pragma unroll
        for (int i = 0; i < kHalf; i += kColumns) transpose_four(words + i);
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
            store_word(reinterpret_cast<uint4*>(transposed.at(col + c, row)),
                       make_uint4(words[c], words[c + 4], words[c + 8], words[c + 12]));
    }
    // Four words of four bytes, in place.
    static __device__ __forceinline__ void transpose_four(uint32_t* w) {
        const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
        const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
        w[0] = __byte_perm(low01, low23, 0x5410);
        w[1] = __byte_perm(low01, low23, 0x7632);
        w[2] = __byte_perm(high01, high23, 0x5410);
        w[3] = __byte_perm(high01, high23, 0x7632);
    }
};

// The counts of rows before the launch that finishes them.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) clear_counts_kernel(uint32_t* counts, int64_t count) {
    wait_for_kernels_before();
    for (int64_t i = threadIdx.x; i < count; i += kThreads) counts[i] = 0;
}

// What a loss with gradients in 8 bits finishes, with `workspace(bytes)` for its counts; nothing for others.
template <class Operation, class Workspace>
FinishedRows finished_rows(const Operation& a, const Workspace& workspace, LaunchSite site) {
    FinishedRows finished;
    if (!a.scale.present()) return finished;
    finished.x = Rows<E5m2>(a.dlogits);
    finished.transposed = Rows<E5m2>(a.transposed);
    finished.rows = static_cast<int>(a.dlogits.rows());
    finished.cols = static_cast<int>(a.dlogits.cols());
    const int64_t count = FinishedRows::num_groups(finished.rows);
    finished.counts = static_cast<uint32_t*>(workspace(count * int64_t{sizeof(uint32_t)}));
    constexpr int kThreads = 256;
    launch(clear_counts_kernel<kThreads>, 1, kThreads, 0, site, finished.counts, count);
    return finished;
}

}  // namespace speedrun
