// What both ways of CPU attention share: one work item is a head of a sequence, walked in tiles of 64 queries
// by 64 keys. Tiles that the mask empties are never visited.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

constexpr int64_t kTile = 64;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// One head of one sequence: where it starts, which keys each query sees.
struct AttentionItem {
    const AttentionOptions& o;
    int64_t first_row;  // of the sequence in T
    int64_t column;     // of the head
    const int32_t* first_key;
    int64_t length, padded_length, width;  // S, S rounded up to tiles, D rounded up to vectors

    AttentionItem(const AttentionOptions& o, int64_t index, Tensor first_keys)
        : o(o),
          first_row(index / o.num_heads * o.sequence_length),
          column(index % o.num_heads * o.head_dim),
          first_key(first_keys.as<int32_t>()),
          length(o.sequence_length),
          padded_length(round_up(o.sequence_length, kTile)),
          width(round_up(o.head_dim, kLanes)) {}

    // First visible key of query i, both counted from the start of the sequence.
    int64_t low(int64_t i) const {
        const int64_t document = first_key[first_row + i] - first_row;
        return std::max({int64_t{0}, document, o.window > 0 ? i - o.window + 1 : int64_t{0}});
    }
    // Lowest and highest first visible key of a tile of queries.
    Range low_range(int64_t begin, int64_t end) const {
        Range range{length, 0};
        for (int64_t i = begin; i < end; ++i) {
            range.begin = std::min(range.begin, low(i));
            range.end = std::max(range.end, low(i));
        }
        return range;
    }
    // Sets the scores of invisible keys of one tile (queries from i0, keys from j0) to −∞.
    void mask(float* scores, int64_t i0, int64_t i1, int64_t j0) const {
        for (int64_t i = i0; i < i1; ++i) {
            float* row = scores + (i - i0) * kTile;
            const int64_t begin = std::clamp(low(i) - j0, int64_t{0}, kTile);
            const int64_t end = std::clamp(i + 1 - j0, int64_t{0}, kTile);
            std::fill(row, row + begin, kMasked);
            std::fill(row + std::max(begin, end), row + kTile, kMasked);
        }
    }
    float* log_sums(Tensor lse) const {
        return lse.as<float>() + column / o.head_dim * lse.cols() + first_row;
    }
    template <class Real>
    Real* row(Tensor x, int64_t i) const {
        return x.as<Real>() + (first_row + i) * x.row_stride + column;
    }
    // Writes a row of x: values · factor.
    template <class Real>
    void pack_row(Tensor x, int64_t i, const float* values, float factor) const {
        Real* to = row<Real>(x, i);
        for_vectors(o.head_dim,
                    [&](int64_t d, auto part) { store(to + d, factor * load(values + d, part), part); });
    }
};

// Attention of bf16 tensors by bf16 products (attention_bf16.cpp), in scratch memory of its own per thread.
bool has_bf16_attention(DType dtype, const AttentionOptions& options);
int64_t bf16_attention_forward_bytes(const AttentionOptions& options);
int64_t bf16_attention_backward_bytes(const AttentionOptions& options);
void bf16_attention_forward(const AttentionItem& item, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                            void* scratch);
void bf16_attention_backward(const AttentionItem& item, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                             Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, void* scratch);

}  // namespace speedrun::cpu
