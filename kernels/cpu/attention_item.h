// Work items of CPU attention: one head of one sequence, and the keys that each query sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

constexpr int64_t kTile = 64;  // queries or keys per tile: their panels stay in the L1 cache
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The rows of one head in one sequence of a tensor.
struct HeadRows {
    Tensor x;

    int64_t stride() const { return x.row_stride; }
    int64_t width() const { return round_up(x.cols(), kLanes); }  // whole vectors
    template <class Real>
    Real* row(int64_t i) const {
        return x.as<Real>() + i * stride();
    }
    // Prefetches rows that are read or written later.
    template <class Real, bool Write>
    void expect(Range rows) const {
        for (int64_t i = rows.begin; i < rows.end; ++i) {
            const Real* to = row<Real>(i);
            for (int64_t d = 0; d < x.cols(); d += 64 / static_cast<int64_t>(sizeof(Real)))
                __builtin_prefetch(to + d, Write ? 1 : 0);
        }
    }
    // Writes row i: values · factor.
    template <class Real>
    void write(int64_t i, const float* values, float factor) const {
        Real* to = row<Real>(i);
        for_vectors(x.cols(),
                    [&](int64_t d, auto part) { store(to + d, factor * load(values + d, part), part); });
    }
};

struct AttentionItem {
    const AttentionOptions& o;
    AttentionRows counts;
    int64_t head, sequence;
    const int32_t* first_keys;   // first key of each query of the sequence
    const int32_t* places;       // position of each query of the sequence; null: position i
    int64_t value_dim;           // Dv
    int64_t width, value_width;  // D and Dv rounded up to vectors

    // Item `index` of a forward or backward call.
    template <class Arguments>
    AttentionItem(const Arguments& a, int64_t index)
        : o(a.options),
          counts(attention_rows(a)),
          head(index % o.num_heads),
          sequence(index / o.num_heads),
          first_keys(a.first_key.template as<int32_t>() + sequence * counts.queries),
          places(a.place.present() ? a.place.template as<int32_t>() + sequence * counts.queries : nullptr),
          value_dim(value_dim_of(a.v, o)),
          width(round_up(o.head_dim, kLanes)),
          value_width(round_up(value_dim, kLanes)) {}

    // Position of query i. Positions and keys count from the start of the sequence.
    int64_t place(int64_t i) const { return places ? places[i] : i; }
    // End of the keys that the queries before `end` see. 0: none.
    int64_t key_end(int64_t end) const { return place(end - 1) + 1; }
    // First query at or after key j.
    int64_t first_query(int64_t j) const {
        return places ? std::lower_bound(places, places + counts.queries, j) - places
                      : std::min(j, counts.queries);
    }
    // First visible key of query i.
    int64_t low(int64_t i) const {
        const int64_t document = first_keys[i] - sequence * counts.keys;
        return std::max({int64_t{0}, document, o.window > 0 ? place(i) - o.window + 1 : int64_t{0}});
    }
    // Lowest and highest first visible key of the queries [begin, end).
    Range low_range(int64_t begin, int64_t end) const {
        Range range{counts.keys, 0};
        for (int64_t i = begin; i < end; ++i) {
            range.begin = std::min(range.begin, low(i));
            range.end = std::max(range.end, low(i));
        }
        return range;
    }
    float* log_sums(Tensor lse) const {
        return lse.as<float>() + head * lse.cols() + sequence * counts.queries;
    }
    HeadRows queries(Tensor x) const { return rows_of(x, counts.queries); }
    HeadRows keys(Tensor x) const { return rows_of(x, counts.keys); }

  private:
    HeadRows rows_of(Tensor x, int64_t count) const {
        const int64_t dim = x.cols() / o.num_heads;
        return {x.row_slice(sequence * count, count).column_slice(head * dim, dim)};
    }
};

// Visible keys of a strip of queries in a key tile: [begin, end). `begin` and `clear_begin` are multiples of
// a vector, `begin` and `end` of `depth`. Every query of the strip sees all of [clear_begin, clear_end); the
// vectors outside that range are masked.
struct View {
    int64_t begin, end, clear_begin, clear_end;

    // Queries [i, i + rows), whose first visible keys are in `low`, and the key tile at j0.
    View(const AttentionItem& item, Range low, int64_t i, int64_t rows, int64_t j0, int64_t depth) {
        begin =
            std::clamp(low.begin - j0, int64_t{0}, kTile) / std::max(kLanes, depth) * std::max(kLanes, depth);
        end = round_up(std::min(item.key_end(i + rows) - j0, kTile), depth);
        clear_begin = round_up(std::max(low.end - j0, begin), kLanes);
        clear_end = item.key_end(i + 1) - j0;
    }
    bool empty() const { return begin >= end; }
    int64_t vectors() const { return ceil_div(end - begin, kLanes); }
    bool clear(int64_t j) const { return j >= clear_begin && j + kLanes <= clear_end; }
};

// Range of keys of a tile that one query sees.
class Edge {
  public:
    Edge(const AttentionItem& item, int64_t i, int64_t j0)
        : low_(static_cast<float>(item.low(i) - j0)), end_(static_cast<float>(item.key_end(i + 1) - j0)) {}
    // Returns the scores of the 16 keys from `first` on, −∞ for invisible keys.
    Vec hide(Vec scores, int64_t first) const {
        const Vec key = load(kNumbers) + static_cast<float>(first);
        return select(key < low_, kMasked, select(key < end_, scores, kMasked));
    }

  private:
    alignas(64) static constexpr float kNumbers[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};
    float low_, end_;
};

// Scratch memory cut into pieces of whole cache lines. Without memory it only counts bytes.
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
