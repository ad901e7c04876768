// What all attention kernels share: the problem, a block's work, and which rows of the other side it has to
// visit.
#pragma once

#include "kernels/cuda/blocks/launch.h"
#include "kernels/cuda/blocks/ptx.h"

namespace speedrun::attention {

constexpr int kGroup = 32;  // queries of which the lowest first visible key is kept, for owners of keys

// What all kernels are told. Rows are counted from the start of a sequence, of which first_row is the first.
struct Problem {
    const int32_t* first_key;
    int64_t rows;  // T
    int num_sequences, length, window, head_dim;
    float scale;

    // First visible key of query i.
    __device__ int low(int64_t first_row, int i) const {
        const int document = static_cast<int>(first_key[first_row + i] - first_row);
        const int recent = window > 0 ? i - window + 1 : 0;
        return max(max(document, recent), 0);
    }
};

template <class Real>
struct View {  // one argument: rows stride apart, all heads
    Real* data;
    int64_t stride;
    __device__ Real* head(int64_t first_row, int64_t column) const {
        return data + first_row * stride + column;
    }
};

struct Where {  // a block's work
    int tile;
    int64_t head, first_row, column;
};
__device__ inline Where where_of(const Problem& p, int tile) {
    const int64_t head = blockIdx.y;
    const int64_t sequence = blockIdx.x % static_cast<unsigned>(p.num_sequences);
    return {tile, head, sequence * p.length, head * p.head_dim};
}
// Owners of late queries and of early keys have most to do and go first.
__device__ inline Where where_of_queries(const Problem& p, int rows_of_tile) {
    const int tiles = (p.length + rows_of_tile - 1) / rows_of_tile;
    return where_of(p, tiles - 1 - static_cast<int>(blockIdx.x) / p.num_sequences);
}
__device__ inline Where where_of_keys(const Problem& p) {
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

// Lowest and highest first visible key of queries begin … begin + kRows of a sequence. Warp.
struct LowRange {
    int lowest, highest;
};
template <int kRows>
__device__ inline LowRange low_range(const Problem& p, int64_t first_row, int begin) {
    LowRange range{p.length, 0};
    for (int row = ptx::lane_id(); row < kRows; row += 32) {
        if (begin + row >= p.length) break;
        const int low = p.low(first_row, begin + row);
        range.lowest = min(range.lowest, low);
        range.highest = max(range.highest, low);
    }
    return {warp_lowest(range.lowest), warp_highest(range.highest)};
}

// End of the queries that see a key below key_end, rounded up to groups. Warp.
__device__ inline int query_end(const Problem& p, const int32_t* group_low, int64_t sequence, int key_begin,
                                int key_end) {
    const int limit = p.window > 0 ? min(p.length, key_end - 1 + p.window) : p.length;
    const int groups = (p.length + kGroup - 1) / kGroup;
    int last = -1;
    for (int group = key_begin / kGroup + ptx::lane_id(); group * kGroup < limit; group += 32) {
        if (group_low[sequence * groups + group] < key_end) last = group;
    }
    return min(limit, (warp_highest(last) + 1) * kGroup);
}

}  // namespace speedrun::attention
