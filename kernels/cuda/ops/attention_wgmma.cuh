// Attention with wgmma (wgmma.h, compute capability 9.0): bf16 operands, f32 sums and softmax, one query per
// key. Two warpgroups of a block own 64 rows each. Both iterate over tiles of the other side. Sizes and shared
// memory: attention_wgmma.cu. This file: the parts that the kernels share.
#pragma once

#include "kernels/cuda/blocks/bulk_copy.h"
#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/blocks/wgmma.h"
#include "kernels/cuda/ops/attention.cuh"

namespace speedrun::attention {

// Rows that a block owns, and rows of the other side per tile.
constexpr int kWgmmaOwned = 128, kWgmmaOthers = 64, kWgmmaStages = 3;
constexpr int kWgmmaThreads = kWgmmaOwned / wgmma::kRows * wgmma::kThreads;

// Starts copying rows begin … begin + kRows of a head into a tile; rows from `end` on become zero. A thread's
// rows are a multiple of eight apart, so their chunks have the same permutation and share one shared-memory
// address.
template <int kRows, int D>
__device__ inline void copy_panels(Bf16* tile, const Bf16* head, int64_t stride, int begin, int end) {
    constexpr int kChunks = D / 8, kApart = kWgmmaThreads / kChunks;
    static_assert(kApart % 8 == 0 && kRows % kApart == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    Bf16* const to = tile + tile::Panels<kRows>::offset(row, chunk);
    const int apart =
        kApart * static_cast<int>(stride);  // 32 bits are enough for a sequence: checked by the launcher
    // With many rows per thread, separate code for whole tiles pays; otherwise its registers do not.
    if (kRows / kApart > 4 && begin + kRows <= end) {
        const Bf16* const from = head + (begin + row) * static_cast<int>(stride) + chunk * 8;
#pragma unroll
        for (int i = 0; i < kRows / kApart; ++i)
            ptx::copy_async_16(to + i * kApart * 64, from + i * apart, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < kRows / kApart; ++i) {
        const int at = begin + row + i * kApart;  // the last row, if none is read
        ptx::copy_async_16(to + i * kApart * 64,
                           head + min(at, end - 1) * static_cast<int>(stride) + chunk * 8, at < end ? 16 : 0);
    }
}

// Index of this thread's warp, known to the compiler to be uniform over its lanes.
__device__ inline int warp_of_block() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

// Waits until the copies of all threads have arrived, visible to matmuls too.
__device__ inline void copies_are_here() {
    ptx::copy_async_wait<0>();
    wgmma::fence_async_proxy();
    __syncthreads();
}

// Fragments of a matmul's left operand from sums, rounded to bf16.
template <int kTiles>
__device__ inline void pack(uint32_t (&a)[kTiles / 2][4], const float (&c)[kTiles][4]) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) tile::pack_a(a[k], c, k);
}

// ---- persistent blocks of queries, with a producer warp

constexpr int kPersistentThreads = kWgmmaThreads + wgmma::kThreads;

// Order of the tiles of queries of all heads and sequences. A block has items blockIdx.x, + gridDim.x, … Heads form sections whose keys
// and values fit the L2 cache together. The tiles of a section are sorted by their number, and thus by their work: up in one section and
// down in the next. The last section ends with the least work.
struct ItemOrder {
    int heads, section, count;  // section: heads; count: items
};
struct Item {
    Where where;
    int sequence;
};
__device__ inline Item item_at(const Problem<false>& p, const ItemOrder& order, int index) {
    const int tiles = (p.length + kWgmmaOwned - 1) / kWgmmaOwned;
    const int per_section = order.section * tiles * p.num_sequences, section = index / per_section;
    const int heads = min(order.section, order.heads - section * order.section),
              within = index - section * per_section;
    const int level = within / (heads * p.num_sequences), at = within - level * heads * p.num_sequences;
    const int sequence = at % p.num_sequences, sections = (order.heads + order.section - 1) / order.section;
    const int64_t head = section * order.section + at / p.num_sequences;
    const bool down = (sections - 1 - section) % 2 == 0;
    return {{down ? tiles - 1 - level : level, head, head * p.head_dim, p.first_of(sequence)}, sequence};
}

// Starts copying kRows rows of a head, from `row` of its sequence on.
template <int D, int kRows>
__device__ inline void copy_tile(Bf16* tile, const TensorMap& map, mbarrier::Barrier* full, const Where& w,
                                 int row, int sequence) {
#pragma unroll
    for (int panel = 0; panel < D / 64; ++panel)
        copy_box(tile + panel * kRows * 64, map, full, static_cast<int>(w.column) + 64 * panel, row,
                 sequence);
}

// Initialises the barriers of a layout with kBuffers tiles besides the queries: one arrival fills a tile, one of each warp empties it.
template <class L>
__device__ inline void init_barriers() {
    if (threadIdx.x == 0) {
        constexpr int kWarps = kWgmmaThreads / 32;
        mbarrier::init(L::queries_full(), 1);
        mbarrier::init(L::queries_empty(), kWarps);
        for (int i = 0; i < L::kBuffers; ++i) {
            mbarrier::init(L::full(i), 1);
            mbarrier::init(L::empty(i), kWarps);
        }
        mbarrier::publish();
    }
    __syncthreads();
}

// One arrival for the warp, after the reads of all its lanes.
__device__ inline void arrive_of_warp(mbarrier::Barrier* barrier) {
    __syncwarp();
    if (ptx::lane_id() == 0) mbarrier::arrive(barrier);
}

}  // namespace speedrun::attention
