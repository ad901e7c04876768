// The work items of CPU attention: one head of one sequence, and which of its keys each query sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

constexpr int64_t kTile = 64;  // queries, or keys, whose panels stay in a first-level cache
constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct AttentionItem {
    const AttentionOptions& o;
    int64_t head;
    int64_t first_row;  // of the sequence in T
    const int32_t* first_key;
    int64_t length, width;  // S, and D rounded up to vectors

    AttentionItem(const AttentionOptions& o, int64_t index, Tensor first_keys)
        : o(o),
          head(index % o.num_heads),
          first_row(index / o.num_heads * o.sequence_length),
          first_key(first_keys.as<int32_t>()),
          length(o.sequence_length),
          width(round_up(o.head_dim, kLanes)) {}

    // First visible key of query i, both counted from the start of the sequence.
    int64_t low(int64_t i) const {
        const int64_t document = first_key[first_row + i] - first_row;
        return std::max({int64_t{0}, document, o.window > 0 ? i - o.window + 1 : int64_t{0}});
    }
    // Lowest and highest first visible key of the queries [begin, end).
    Range low_range(int64_t begin, int64_t end) const {
        Range range{length, 0};
        for (int64_t i = begin; i < end; ++i) {
            range.begin = std::min(range.begin, low(i));
            range.end = std::max(range.end, low(i));
        }
        return range;
    }
    float* log_sums(Tensor lse) const { return lse.as<float>() + head * lse.cols() + first_row; }
    template <class Real>
    Real* row(Tensor x, int64_t i) const {
        return x.as<Real>() + (first_row + i) * x.row_stride + head * o.head_dim;
    }
    // Asks for the lines of rows that are written once their sums are known, so that they come while that
    // takes.
    template <class Real>
    void expect_rows(Tensor x, int64_t begin, int64_t end) const {
        for (int64_t i = begin; i < end; ++i) {
            const Real* to = row<Real>(x, i);
            for (int64_t d = 0; d < o.head_dim; d += 64 / static_cast<int64_t>(sizeof(Real)))
                __builtin_prefetch(to + d, 1);
        }
    }
    // Writes a row of x: values · factor.
    template <class Real>
    void write_row(Tensor x, int64_t i, const float* values, float factor) const {
        Real* to = row<Real>(x, i);
        for_vectors(o.head_dim,
                    [&](int64_t d, auto part) { store(to + d, factor * load(values + d, part), part); });
    }
};

// What a strip of queries sees of a tile of keys: the keys [begin, end) of the tile, begin and clear_begin on
// whole vectors, both on multiples of `depth`. Every query of the strip sees all of [clear_begin, clear_end);
// the vectors outside of that are crossed by an edge.
struct View {
    int64_t begin, end, clear_begin, clear_end;

    // The queries [i, i + rows) with these first visible keys, and the tile at j0.
    View(Range low, int64_t i, int64_t rows, int64_t j0, int64_t depth) {
        begin =
            std::clamp(low.begin - j0, int64_t{0}, kTile) / std::max(kLanes, depth) * std::max(kLanes, depth);
        end = round_up(std::min(i + rows - j0, kTile), depth);
        clear_begin = round_up(std::max(low.end - j0, begin), kLanes);
        clear_end = i + 1 - j0;
    }
    bool empty() const { return begin >= end; }
    int64_t vectors() const { return ceil_div(end - begin, kLanes); }
    bool clear(int64_t j) const { return j >= clear_begin && j + kLanes <= clear_end; }
};

// The keys of a tile that one query sees.
class Edge {
  public:
    Edge(const AttentionItem& item, int64_t i, int64_t j0)
        : low_(static_cast<float>(item.low(i) - j0)), end_(static_cast<float>(i + 1 - j0)) {}
    // The scores of 16 keys from `first` on, those of invisible ones −∞.
    Vec hide(Vec scores, int64_t first) const {
        const Vec key = load(kNumbers) + static_cast<float>(first);
        return select(key < low_, kMasked, select(key < end_, scores, kMasked));
    }

  private:
    alignas(64) static constexpr float kNumbers[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};
    float low_, end_;
};

// Scratch memory cut into pieces, each on cache lines of its own. Without memory it only counts.
class Scratch {
  public:
    explicit Scratch(void* memory) : memory_(static_cast<char*>(memory)) {}
    template <class T>
    T* take(int64_t count) {
        const int64_t offset = bytes_;
        bytes_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return memory_ ? reinterpret_cast<T*>(memory_ + offset) : nullptr;
    }
    int64_t bytes() const { return bytes_; }

  private:
    char* memory_;
    int64_t bytes_ = 0;
};

}  // namespace speedrun::cpu
