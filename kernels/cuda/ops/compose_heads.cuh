// Common code of the compose_heads kernels: the rows of a block, the rows of the other side, and the mixed
// map of a tile of queries. Forward applies it to values; backward recomputes it.
//
// Legend: T tokens, H heads · cols columns of a map: the keys from the first key of the tile on · W as in the
// matmuls.
#pragma once

#include "kernels/cuda/ops/compose_heads_products.cuh"
#include "kernels/ops/ops.h"

namespace speedrun::composed {

// One weight per head, or one per head and token.
struct Weights {
    float* data;
    int64_t stride;  // 0: shared by all tokens

    explicit Weights(const Tensor& w) : data(w.as<float>()), stride(w.rank == 2 ? w.row_stride : 0) {}
    __device__ __forceinline__ float at(int64_t row, int head) const { return data[row * stride + head]; }
};

struct Sizes {
    const int32_t* first_key;
    Weights w1, w2;
    int length, heads, head_dim, keys;
    float scale, epsilon;

    template <class Arguments>
    explicit Sizes(const Arguments& a)
        : first_key(a.first_key.template as<int32_t>()),
          w1(a.w1),
          w2(a.w2),
          length(static_cast<int>(a.options.sequence_length)),
          heads(static_cast<int>(a.options.num_heads)),
          head_dim(static_cast<int>(a.options.head_dim)),
          keys(static_cast<int>(a.options.keys)),
          scale(a.options.scale),
          epsilon(a.options.epsilon) {}
    __host__ __device__ int tiles() const { return (length + kTile - 1) / kTile; }
    // Maximum rows of the other side for a tile: the keys that its queries see, or the queries that see its
    // keys.
    __host__ __device__ int max_columns() const {
        return padded(length < kTile + keys - 1 ? length : kTile + keys - 1);
    }
};

// Rows of a block, and the rows of the other side that they see or that see them.
struct Tile {
    int64_t begin;  // first row
    int count;
    int64_t other;  // first key (tile of queries) or first query (tile of keys)
    int others;

    __device__ Tile(const Sizes& s, bool of_queries) {
        const int tiles = s.tiles(), tile = static_cast<int>(blockIdx.x) % tiles;
        const int64_t sequence = int64_t{static_cast<int>(blockIdx.x) / tiles} * s.length,
                      end = sequence + s.length;
        begin = sequence + int64_t{tile} * kTile;
        count = static_cast<int>(end - begin < kTile ? end - begin : kTile);
        if (of_queries) {
            other = begin - s.keys + 1 > sequence ? begin - s.keys + 1 : sequence;
            others = static_cast<int>(begin + count - other);
        } else {
            other = begin;
            const int64_t last = begin + count + s.keys - 1;
            others = static_cast<int>((last < end ? last : end) - begin);
        }
    }
};

// First key that a query sees, in its sequence.
__device__ __forceinline__ int64_t low_of(const Sizes& s, int64_t query) {
    const int64_t recent = query - s.keys + 1, document = s.first_key[query];
    return recent > document ? recent : document;
}

// Calls body(row) for each row of the tile that belongs to the thread's warp.
template <class Body>
__device__ __forceinline__ void for_rows_of_warp(const Tile& tile, Body&& body) {
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int row = warp_index() * kRowsOfWarp + r;
        if (row < tile.count) body(row);
    }
}

// (mean_h(w1²) + epsilon)^-½ of a token. Warp.
__device__ __forceinline__ float rstd_of(const Sizes& s, int64_t token) {
    float square = 0.0f;
    for (int h = lane_index(); h < s.heads; h += sizes::kWarp) {
        const float w = s.w1.at(token, h);
        square = fmaf(w, w, square);
    }
    return rsqrtf(warp_sum(square) / static_cast<float>(s.heads) + s.epsilon);
}

// Shared memory of a block over queries: offsets in floats.
struct QueryMemory {
    int pitch, map, mixed, dmixed, lse, e, dw2;

    __host__ __device__ QueryMemory(const Sizes& s, bool backward) {
        pitch = pitch_of_map(s.max_columns());
        map = kStaged;
        mixed = map + kTile * pitch;
        dmixed = mixed + kTile * pitch;
        lse = dmixed + kTile * pitch;
        e = lse + kTile * s.heads;
        dw2 = e + kTile * s.heads;
        floats = backward ? dw2 + kTile * s.heads : dmixed;
    }
    int floats;
    __device__ auto row(int of, int r) const {
        return shared_memory<float>((int64_t{of} + int64_t{r} * pitch) * 4, pitch);
    }
};

// Softmax of a row of scores in place, unnormalized; adds u times the probabilities to the mix. Returns log Σ
// exp. Warp.
template <class Row>
__device__ __forceinline__ float soften(Row scores, Row mixed, int first, int end, int cols, float u) {
    float largest = -INFINITY;
    for (int c = lane_index(); c < cols; c += sizes::kWarp)
        if (c >= first && c < end) largest = fmaxf(largest, scores[c]);
    largest = warp_max(largest);
    float total = 0.0f;
    for (int c = lane_index(); c < cols; c += sizes::kWarp) {
        const float e = c >= first && c < end ? expf(scores[c] - largest) : 0.0f;
        scores[c] = e;
        total += e;
    }
    total = warp_sum(total);
    const float share = total > 0.0f ? u / total : 0.0f;
    for (int c = lane_index(); c < cols; c += sizes::kWarp) mixed[c] = fmaf(share, scores[c], mixed[c]);
    return total > 0.0f ? largest + logf(total) : 0.0f;
}

// Mixed maps of all rows. keep_lse: also stores the log-sums for backward.
template <int W, class Real>
__device__ inline void mix_maps(const Sizes& s, const Tile& tile, const QueryMemory& m, const Rows<Real>& q,
                                const Rows<Real>& k, int cols, bool keep_lse) {
    for (int r = 0; r < kRowsOfWarp; ++r) {  // all rows, as combine() reads rows without a query too
        const auto mixed = m.row(m.mixed, warp_index() * kRowsOfWarp + r);
        for (int c = lane_index(); c < cols; c += sizes::kWarp) mixed[c] = 0.0f;
    }
    for (int h = 0; h < s.heads; ++h) {
        dots<W, false>(m.map, m.pitch, HeadRows<Real>(q, tile.begin, tile.count, h, s.head_dim),
                       HeadRows<Real>(k, tile.other, tile.others, h, s.head_dim), cols, s.scale);
        __syncthreads();
        for_rows_of_warp(tile, [&](int row) {
            const int64_t token = tile.begin + row;
            const float u = s.w1.at(token, h) * rstd_of(s, token);
            const int first = static_cast<int>(low_of(s, token) - tile.other),
                      end = static_cast<int>(token + 1 - tile.other);
            const float lse = soften(m.row(m.map, row), m.row(m.mixed, row), first, end, cols, u);
            if (keep_lse && lane_index() == 0)
                shared_memory<float>(int64_t{m.lse} * 4)[row * s.heads + h] = lse;
        });
        // dots() of the next head begins with a barrier before it writes the map.
    }
}

}  // namespace speedrun::composed
