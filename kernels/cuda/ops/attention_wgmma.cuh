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

// Index of this thread's warp, known to the compiler to be uniform over its lanes.
__device__ inline int warp_of_block() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

// Fragments of a matmul's left operand from sums, rounded to bf16.
template <int kTiles>
__device__ inline void pack(uint32_t (&a)[kTiles / 2][4], const float (&c)[kTiles][4]) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) tile::pack_a(a[k], c, k);
}

// Columns of a tile of heads of D columns: whole panels. The rest of a tile for D = 96 has columns of the next head, which only the
// unused columns of sums depend on.
template <int D>
constexpr int kColumns = (D + 63) / 64 * 64;

// ---- persistent blocks with producer warps

constexpr int kPersistentThreads = kWgmmaThreads + wgmma::kThreads;

__host__ __device__ constexpr int tiles_of(int length) {
    return (length + kWgmmaOwned - 1) / kWgmmaOwned;
}

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
    const int tiles = tiles_of(p.length);
    const int per_section = order.section * tiles * p.num_sequences, section = index / per_section;
    const int heads = min(order.section, order.heads - section * order.section),
              within = index - section * per_section;
    const int level = within / (heads * p.num_sequences), at = within - level * heads * p.num_sequences;
    const int sequence = at % p.num_sequences, sections = (order.heads + order.section - 1) / order.section;
    const int64_t head = section * order.section + at / p.num_sequences;
    const bool down = (sections - 1 - section) % 2 == 0;
    return {{down ? tiles - 1 - level : level, head, head * p.head_dim, p.first_of(sequence)}, sequence};
}

// Same order for tiles of keys: early queries have the least work, and late keys.
__device__ inline Item item_of_keys(const Problem<false>& p, const ItemOrder& order, int index) {
    Item item = item_at(p, order, index);
    item.where.tile = tiles_of(p.length) - 1 - item.where.tile;
    return item;
}

// The producer passes each item to the other warps: consumers would repeat the divisions of item_at(). bound: first visible key of the
// queries, or end of the queries that see the keys.
__device__ inline void pass_item(int* shared, const Item& item, int bound) {
    shared[0] = item.where.tile;
    shared[1] = static_cast<int>(item.where.head);
    shared[2] = item.sequence;
    shared[3] = bound;
}
__device__ inline Item passed_item(const Problem<false>& p, const int* shared) {
    const int64_t head = shared[1];
    return {{shared[0], head, head * p.head_dim, p.first_of(shared[2])}, shared[2]};
}
constexpr int kItemBytes = 16;

// Scratch memory of backward, in parts of kPart queries, filled up at the end of each sequence. Bulk copies read whole parts.
struct Statistics {
    static constexpr int kPart = 64;
    static constexpr int kFloats = 2 * kPart;  // −lse · log2(e), then delta; after the last query −∞ and 0
    static constexpr int kInts = kPart + 4;  // first visible keys, their maximum, padding to 16 bytes
    float* of_head;                          // [H][sequences][parts][kFloats]
    int* of_sequence;                        // [sequences][parts][kInts]
    int* query_ends;  // [sequences][tiles of kWgmmaOwned keys]: end of the queries that see one of them

    __device__ float* floats(const Problem<false>& p, const Item& item, int part) const {
        return of_head + ((item.where.head * p.num_sequences + item.sequence) * parts(p) + part) * kFloats;
    }
    __device__ int* ints(const Problem<false>& p, int sequence, int part) const {
        return of_sequence + (int64_t{sequence} * parts(p) + part) * kInts;
    }
    __device__ static int64_t parts(const Problem<false>& p) {
        return int64_t{kWgmmaOwned} / kPart * tiles_of(p.length);
    }
};

// Starts copying kRows rows of a head of D columns, from `row` of its sequence on.
template <int D, int kRows>
__device__ inline void copy_tile(Bf16* tile, const TensorMap& map, mbarrier::Barrier* full, const Where& w,
                                 int row, int sequence) {
#pragma unroll
    for (int panel = 0; panel < kColumns<D> / 64; ++panel)
        copy_box(tile + panel * kRows * 64, map, full, static_cast<int>(w.head) * D + 64 * panel, row,
                 sequence);
}

// Initialises the barriers of a layout with kBuffers tiles besides its owned ones: one arrival fills a tile, one of each warp empties it.
template <class L, class... Maps>
__device__ inline void init_barriers(const Maps&... maps) {
    if (threadIdx.x == 0) {
        (prefetch(maps), ...);
        constexpr int kWarps = kWgmmaThreads / 32;
        mbarrier::init(L::owned_full(), 1);
        mbarrier::init(L::owned_empty(), kWarps);
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
