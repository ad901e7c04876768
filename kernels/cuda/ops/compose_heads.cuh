// What the kernels of compose_heads share: a block's rows and those that they meet, and the mixed map of a tile of queries,
// which forward applies to values and backward needs again.
//
// Legend: T tokens, H heads · cols columns of a map, which are keys from the tile's first on · W as in the products.
#pragma once

#include "kernels/cuda/ops/compose_heads_products.cuh"
#include "kernels/ops/ops.h"

namespace speedrun::composed {

// One number for each head, or one for each head of each token.
struct Weights {
    float* data;
    int64_t stride;  // 0: for all tokens

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
    // Rows of a tile, and all that see them or that they see.
    __host__ __device__ int most_columns() const {
        return padded(length < kTile + keys - 1 ? length : kTile + keys - 1);
    }
};

// A block's rows, and those that they meet.
struct Tile {
    int64_t begin;  // first row
    int count;
    int64_t other;  // first key of a tile of queries, query of one of keys
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

// Calls body(row) for each of the tile's rows that the thread's warp has.
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

// What a block over queries has in shared memory, in floats from its start.
struct QueryMemory {
    int pitch, map, mixed, dmixed, lse, e, dw2;

    __host__ __device__ QueryMemory(const Sizes& s, bool backward) {
        pitch = pitch_of_map(s.most_columns());
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

// The scores of a row become probabilities, of which u times each is added to the mix. Warp. Returns log Σ exp.
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

// All rows' mixes of maps; keep_lse: and the logarithms that backward needs.
template <int W, class Real>
__device__ inline void mix_maps(const Sizes& s, const Tile& tile, const QueryMemory& m, const Rows<Real>& q,
                                const Rows<Real>& k, int cols, bool keep_lse) {
    for (int r = 0; r < kRowsOfWarp; ++r) {  // those that no query has too: combine() multiplies by all
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
