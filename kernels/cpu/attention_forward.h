// Flash attention over the tiles of an item. Scores are summed in f32, then scaled. Tiles are 64 queries by
// 64 keys, with strips of 6 queries (f32) and vectors of 16 keys. A strip visits a vector if any of its
// queries sees any of its keys. All levels visit alike, so f32 results have the same bits at each.
#pragma once

#include <cmath>

#include "kernels/cpu/attention_strip.h"

namespace speedrun::cpu {

// Scratch memory of the forward pass of an item.
template <class Kind>
struct ForwardMemory {
    typename Kind::Word *key_lines, *values, *queries;
    float *scores, *result, *totals;
    typename Kind::Element* probabilities;
    int64_t bytes;

    ForwardMemory(const op::AttentionForward& a, void* memory) {
        const AttentionRows counts = attention_rows(a);
        const int64_t width = round_up(a.options.head_dim, kLanes),
                      value_width = round_up(value_dim_of(a.v, a.options), kLanes);
        Scratch scratch(memory);
        key_lines = scratch.take<typename Kind::Word>(round_up(counts.keys, kTile) * width / Kind::kPerWord);
        values = scratch.take<typename Kind::Word>(Kind::Head::words(counts.keys, value_width));
        queries = scratch.take<typename Kind::Word>(Kind::Head::words(counts.queries, width));
        scores = scratch.take<float>(Kind::kStrip * kTile);
        probabilities = scratch.take<typename Kind::Element>(Kind::kStrip * kTile);
        result = scratch.take<float>(kTile * value_width);
        totals = scratch.take<float>(kTile * kLanes);
        bytes = scratch.bytes();
    }
};

// Online softmax of a strip of queries: results are relative to the running maximum.
struct RunningMaximum {
    alignas(64) float highest[kLanes], factors[kLanes], subtract[kLanes];

    RunningMaximum() { std::fill(highest, highest + kLanes, kMasked); }
    // Merges the maximum scores of another tile. Earlier sums must be multiplied by `factors`.
    void raise(const float* scores) {
        const Vec before = load(highest), now = max(before, load(scores));
        const Vec finite = select(kMasked < now, now, 0.0f);  // no visible key yet: all exponentials are 0
        store(highest, now);
        store(subtract, finite);
        store(factors, exp(before - finite));
    }
};

// A tile of queries from i0 on, against the key tiles that they see, in order.
template <class Kind>
class ForwardTile {
  public:
    static constexpr int64_t kStrip = Kind::kStrip;

    ForwardTile(const AttentionItem& item, const ForwardMemory<Kind>& memory,
                const typename Kind::LeftHead& queries, const typename Kind::Head& values, Range i)
        : item_(item), m_(memory), queries_(queries), values_(values), i_(i) {
        for (int64_t first = i.begin; first < i.end; first += kStrip)
            low_[strip_of(first)] = item.low_range(first, std::min(first + kStrip, i.end));
        std::fill(m_.result, m_.result + (i.end - i.begin) * item.value_width, 0.0f);
        std::fill(m_.totals, m_.totals + (i.end - i.begin) * kLanes, 0.0f);
    }

    // Processes the key tile at j0.
    void run(int64_t j0) {
        for (int64_t i = i_.begin; i < i_.end; i += kStrip) {
            const int64_t rows = std::min(kStrip, i_.end - i);
            const View view(item_, low_[strip_of(i)], i, rows, j0, Kind::kDepth);
            if (!view.empty()) strip(i, rows, view, j0);
        }
    }
    void finish(HeadRows o, float* log_sums) const {
        for (int64_t i = i_.begin; i < i_.end; i += kStrip) {
            const int64_t rows = std::min(kStrip, i_.end - i), at = i - i_.begin;
            alignas(64) float totals[kLanes] = {}, factors[kLanes];
            for (int64_t r = 0; r < rows; ++r) totals[r] = sum(load(m_.totals + (at + r) * kLanes));
            store(factors, select(load(totals) <= Vec{}, 0.0f, 1.0f / load(totals)));  // 0: no visible key
            for (int64_t r = 0; r < rows; ++r) {
                o.write<typename Kind::Real>(i + r, m_.result + (at + r) * item_.value_width, factors[r]);
                log_sums[i + r] = maxima_[strip_of(i)].highest[r] + std::log(totals[r]);
            }
        }
    }

  private:
    int64_t strip_of(int64_t i) const { return (i - i_.begin) / kStrip; }

    void strip(int64_t i, int64_t rows, View view, int64_t j0) {
        const int64_t words = item_.o.head_dim / Kind::kPerWord,
                      tile_words = item_.width / Kind::kPerWord * kTile, width = item_.value_width;
        const Vec scale = item_.o.scale;
        float* scores = m_.scores;
        product<Kind>(rows, view.vectors(), queries_.left(i),
                      m_.key_lines + j0 / kTile * tile_words + view.begin, kTile, words,
                      [&](int64_t r, int64_t vector, Vec x) {
                          store(scores + r * kTile + view.begin + vector * kLanes, scale * x);
                      });

        alignas(64) float highest[kLanes];
        for (int64_t r = 0; r < rows; ++r) {
            Vec top = kMasked;
            for (int64_t j = view.begin; j < view.end; j += kLanes) {
                Vec x = load(scores + r * kTile + j);
                if (!view.clear(j)) {
                    x = Edge(item_, i + r, j0).hide(x, j);
                    store(scores + r * kTile + j, x);
                }
                top = max(top, x);
            }
            highest[r] = max_lane(top);
        }
        std::fill(highest + rows, highest + kLanes, kMasked);
        RunningMaximum& maximum = maxima_[strip_of(i)];
        maximum.raise(highest);
        for (int64_t r = 0; r < rows; ++r) {
            const Vec subtract = maximum.subtract[r];
            Vec sums{};
            for (int64_t j = view.begin; j < view.end; j += kLanes) {
                const Vec p = exp(load(scores + r * kTile + j) - subtract);
                Kind::store_probabilities(m_.probabilities + r * kTile + j, p);
                sums += p;
            }
            float* total = m_.totals + (i - i_.begin + r) * kLanes;
            store(total, fma(maximum.factors[r], load(total), sums));
        }
        float* result = m_.result + (i - i_.begin) * width;
        product<Kind>(rows, width / kLanes, Kind::probabilities(m_.probabilities + view.begin),
                      values_.panel(j0 + view.begin), values_.stride(),
                      ceil_div(view.end - view.begin, Kind::kPerWord), [&](int64_t r, int64_t vector, Vec x) {
                          float* to = result + r * width + vector * kLanes;
                          store(to, fma(maximum.factors[r], load(to), x));
                      });
    }

    static constexpr int64_t kStrips = (kTile + kStrip - 1) / kStrip;
    const AttentionItem& item_;
    const ForwardMemory<Kind>& m_;
    const typename Kind::LeftHead& queries_;
    const typename Kind::Head& values_;
    const Range i_;
    RunningMaximum maxima_[kStrips];
    Range low_[kStrips];  // lowest and highest first key of each strip
};

// The queries [queries.begin, queries.end) of one head.
template <class Kind>
void attention_forward(const AttentionItem& item, Range queries, const op::AttentionForward& a,
                       const ForwardMemory<Kind>& memory) {
    const int64_t tile_words = item.width / Kind::kPerWord * kTile;
    const int64_t key_end = item.key_end(queries.end);
    const Range keys{std::min(item.low_range(queries.begin, queries.end).begin, key_end) / kTile * kTile,
                     key_end};
    for (int64_t j = keys.begin; j < keys.end; j += kTile) {
        Kind::pack_lines(memory.key_lines + j / kTile * tile_words, item.keys(a.k), j,
                         std::min(kTile, keys.end - j));
    }
    const typename Kind::Head values(item.keys(a.v), keys, memory.values);
    const typename Kind::LeftHead rows_of_q(item.queries(a.q), queries, memory.queries);
    for (int64_t i0 = queries.begin; i0 < queries.end; i0 += kTile) {
        const Range i{i0, std::min(i0 + kTile, queries.end)};
        ForwardTile<Kind> tile(item, memory, rows_of_q, values, i);
        const int64_t end = item.key_end(i.end);
        for (int64_t j0 = item.low_range(i.begin, i.end).begin / kTile * kTile; j0 < end; j0 += kTile)
            tile.run(j0);
        tile.finish(item.queries(a.o), item.log_sums(a.lse));
    }
}

}  // namespace speedrun::cpu
