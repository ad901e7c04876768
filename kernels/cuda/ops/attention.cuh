// Common code of all attention kernels: the problem, a block's work, and the rows of the other side that it
// visits.
#pragma once

#include "kernels/cuda/blocks/launch.h"
#include "kernels/cuda/blocks/ptx.h"

namespace speedrun::attention {

constexpr int kMaxHeadDim = 128;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int kGroup = 32;  // queries per group; owners of keys store each group's lowest first visible key

// Kernel arguments of all attention kernels.
struct Sizes {
    const int32_t* first_key;
    int64_t rows;                       // Tq
    int num_sequences, length, window;  // length: keys per sequence
    int head_dim, value_dim;            // columns of a head of q and k, of v and o
    float scale;
    const int32_t* places;  // null: one query per key
    int num_queries;        // queries per sequence
};

// First query row and first key row of a sequence. Queries and keys count from there.
struct FirstRows {
    int64_t query, key;
};

// Kernels are compiled for queries at given places (kPlaced), and for one query per key, whose place is its
// index. The latter use the index directly: a function, even one that returns its argument, changed the code
// around it.
template <bool kPlaced>
struct Problem : Sizes {
    __device__ int queries() const { return kPlaced ? num_queries : length; }
    __device__ FirstRows first_of(int64_t sequence) const {
        return {sequence * queries(), sequence * length};
    }
    // Place of query i. kPlaced only.
    __device__ int place(FirstRows first, int i) const { return places[first.query + i]; }
    // End of the keys that the queries before `end` see: the last of them sees the most. kPlaced only.
    __device__ int key_end(FirstRows first, int end) const { return place(first, end - 1) + 1; }
    // First query at or after a key. kPlaced only. Warp.
    __device__ int first_query(FirstRows first, int key) const;
    // First visible key of query i.
    __device__ int low(FirstRows first, int i) const {
        const int document = static_cast<int>(first_key[first.query + i] - first.key);
        const int own = kPlaced ? place(first, i) : i;
        const int recent = window > 0 ? own - window + 1 : 0;
        return max(max(document, recent), 0);
    }
};

template <class Real>
struct View {  // rows `stride` apart, all heads
    Real* data;
    int64_t stride;
    __device__ Real* head(int64_t row, int64_t column) const { return data + row * stride + column; }
};

struct Where {  // work of a block
    int tile;
    int64_t head, column;
    FirstRows first;
};
template <bool kPlaced>
__device__ inline Where where_of(const Problem<kPlaced>& p, int tile) {
    const int64_t head = blockIdx.y;
    const int64_t sequence = blockIdx.x % static_cast<unsigned>(p.num_sequences);
    return {tile, head, head * p.head_dim, p.first_of(sequence)};
}
// Blocks with the most work go first: owners of late queries and of early keys.
template <bool kPlaced>
__device__ inline Where where_of_queries(const Problem<kPlaced>& p, int rows_of_tile) {
    const int tiles = (p.queries() + rows_of_tile - 1) / rows_of_tile;
    return where_of(p, tiles - 1 - static_cast<int>(blockIdx.x) / p.num_sequences);
}
template <bool kPlaced>
__device__ inline Where where_of_keys(const Problem<kPlaced>& p) {
    return where_of(p, static_cast<int>(blockIdx.x) / p.num_sequences);
}

__device__ inline int warp_lowest(int value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}
__device__ inline int warp_highest(int value) {
    return -warp_lowest(-value);
}

// Each step tests 32 queries, spread evenly over the remaining range.
template <bool kPlaced>
__device__ inline int Problem<kPlaced>::first_query(FirstRows first, int key) const {
    int low = 0, high = queries();
    while (low < high) {
        const int step = (high - low + 31) / 32, at = low + step * ptx::lane_id();
        const bool before = at < high && place(first, at) < key;
        const int last = warp_highest(before ? ptx::lane_id() : -1);
        high = min(high, low + step * (last + 1));
        if (last >= 0) low += step * last + 1;
    }
    return low;
}

// Lowest and highest first visible key of queries begin … begin + kRows of a sequence. Warp.
struct LowRange {
    int lowest, highest;
};
template <int kRows, bool kPlaced>
__device__ inline LowRange low_range(const Problem<kPlaced>& p, FirstRows first, int begin) {
    LowRange range{p.length, 0};
#pragma unroll
    for (int row = ptx::lane_id(); row < kRows; row += 32) {
        const int low =
            p.low(first, min(begin + row, p.queries() - 1));  // loads without a branch between them
        range.lowest = min(range.lowest, low);
        range.highest = max(range.highest, low);
    }
    return {warp_lowest(range.lowest), warp_highest(range.highest)};
}

// End of the queries from `begin` on that see a key below key_end, rounded up to groups. Warp.
template <bool kPlaced>
__device__ inline int query_end(const Problem<kPlaced>& p, const int32_t* group_low, const Where& w,
                                int begin, int key_end) {
    const int limit = p.window > 0 ? min(p.queries(), kPlaced ? p.first_query(w.first, key_end - 1 + p.window)
                                                              : key_end - 1 + p.window)
                                   : p.queries();
    const int64_t sequence = w.first.key / p.length;
    const int groups = (p.queries() + kGroup - 1) / kGroup;
    int last = -1;
    for (int group = begin / kGroup + ptx::lane_id(); group * kGroup < limit; group += 32) {
        if (group_low[sequence * groups + group] < key_end) last = group;
    }
    return min(limit, (warp_highest(last) + 1) * kGroup);
}

}  // namespace speedrun::attention
