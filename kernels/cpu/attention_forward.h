// Flash attention over the tiles of an item. Scores are summed in f32 and then scaled. Tiles of 64 queries by
// 64 keys, strips of 6 (in f32) queries in them and vectors of 16 keys are visited where some query of the
// strip sees some key, at all levels alike: so f32 results have the same bits at each.
#pragma once

#include <cmath>

#include "kernels/cpu/attention_strip.h"

namespace speedrun::cpu {

// Where the forward pass of an item works.
template <class Kind>
struct ForwardMemory {
    typename Kind::Word *key_lines, *values, *queries;
    float *scores, *result, *totals;
    typename Kind::Element* probabilities;
    int64_t bytes;

    ForwardMemory(const op::AttentionForward& a, void* memory) {
        const AttentionRows counts = attention_rows(a);
        const int64_t width = round_up(a.options.head_dim, kLanes);
        Scratch scratch(memory);
        key_lines = scratch.take<typename Kind::Word>(round_up(counts.keys, kTile) * width / Kind::kPerWord);
        values = scratch.take<typename Kind::Word>(Kind::Head::words(counts.keys, width));
        queries = scratch.take<typename Kind::Word>(Kind::Head::words(counts.queries, width));
        scores = scratch.take<float>(Kind::kStrip * kTile);
        probabilities = scratch.take<typename Kind::Element>(Kind::kStrip * kTile);
        result = scratch.take<float>(kTile * width);
        totals = scratch.take<float>(kTile * kLanes);
        bytes = scratch.bytes();
    }
};

// Results of a strip of queries so far are relative to the highest score so far.
struct RunningMaximum {
    alignas(64) float highest[kLanes], factors[kLanes], subtract[kLanes];

    RunningMaximum() { std::fill(highest, highest + kLanes, kMasked); }
    // Takes in the highest scores of another tile; earlier sums are to be multiplied by `factors`.
    void raise(const float* scores) {
        const Vec before = load(highest), now = max(before, load(scores));
        const Vec finite = select(kMasked < now, now, 0.0f);  // nothing visible yet: all exponentials are 0
        store(highest, now);
        store(subtract, finite);
        store(factors, exp(before - finite));
    }
};

// The queries [queries.begin, queries.end) of one head.
template <class Kind>
void attention_forward(const AttentionItem& item, Range queries, const op::AttentionForward& a,
                       const ForwardMemory<Kind>& memory) {
    constexpr int64_t kStrip = Kind::kStrip, kStrips = (kTile + kStrip - 1) / kStrip;  // of a tile
    [[maybe_unused]] const typename Kind::Unit unit;
    const int64_t width = item.width, words = item.o.head_dim / Kind::kPerWord,
                  tile_words = width / Kind::kPerWord * kTile;
    const Range keys{item.low_range(queries.begin, queries.end).begin / kTile * kTile,
                     item.key_end(queries.end)};
    for (int64_t j = keys.begin; j < keys.end; j += kTile) {
        Kind::pack_lines(memory.key_lines + j / kTile * tile_words, item, item.keys(a.k), j,
                         std::min(kTile, keys.end - j));
    }
    const typename Kind::Head values(item, item.keys(a.v), keys, memory.values);
    const typename Kind::LeftHead rows_of_q(item, item.queries(a.q), queries, memory.queries);
    float* log_sums = item.log_sums(a.lse);
    const Vec scale = item.o.scale;

    for (int64_t i0 = queries.begin; i0 < queries.end; i0 += kTile) {
        const int64_t i1 = std::min(i0 + kTile, queries.end), j1 = item.key_end(i1);
        RunningMaximum maxima[kStrips];
        Range low[kStrips];  // of each strip
        for (int64_t i = i0; i < i1; i += kStrip)
            low[(i - i0) / kStrip] = item.low_range(i, std::min(i + kStrip, i1));
        std::fill(memory.result, memory.result + (i1 - i0) * width, 0.0f);
        std::fill(memory.totals, memory.totals + (i1 - i0) * kLanes, 0.0f);
        for (int64_t j0 = item.low_range(i0, i1).begin / kTile * kTile; j0 < j1; j0 += kTile) {
            for (int64_t i = i0; i < i1; i += kStrip) {
                const int64_t rows = std::min(kStrip, i1 - i);
                const View view(item, low[(i - i0) / kStrip], i, rows, j0, Kind::kDepth);
                if (view.empty()) continue;
                float* scores = memory.scores;
                product<Kind>(rows, view.vectors(), rows_of_q.left(i),
                              memory.key_lines + j0 / kTile * tile_words + view.begin, kTile, words,
                              [&](int64_t r, int64_t vector, Vec x) {
                                  store(scores + r * kTile + view.begin + vector * kLanes, scale * x);
                              });

                alignas(64) float highest[kLanes];
                for (int64_t r = 0; r < rows; ++r) {
                    Vec top = kMasked;
                    for (int64_t j = view.begin; j < view.end; j += kLanes) {
                        Vec x = load(scores + r * kTile + j);
                        if (!view.clear(j)) {
                            x = Edge(item, i + r, j0).hide(x, j);
                            store(scores + r * kTile + j, x);
                        }
                        top = max(top, x);
                    }
                    highest[r] = max_lane(top);
                }
                std::fill(highest + rows, highest + kLanes, kMasked);
                RunningMaximum& maximum = maxima[(i - i0) / kStrip];
                maximum.raise(highest);
                for (int64_t r = 0; r < rows; ++r) {
                    const Vec subtract = maximum.subtract[r];
                    Vec sums{};
                    for (int64_t j = view.begin; j < view.end; j += kLanes) {
                        const Vec p = exp(load(scores + r * kTile + j) - subtract);
                        Kind::store_probabilities(memory.probabilities + r * kTile + j, p);
                        sums += p;
                    }
                    float* total = memory.totals + (i - i0 + r) * kLanes;
                    store(total, fma(maximum.factors[r], load(total), sums));
                }
                float* result = memory.result + (i - i0) * width;
                product<Kind>(rows, width / kLanes, Kind::probabilities(memory.probabilities + view.begin),
                              values.panel(j0 + view.begin), values.stride(),
                              ceil_div(view.end - view.begin, Kind::kPerWord),
                              [&](int64_t r, int64_t vector, Vec x) {
                                  float* to = result + r * width + vector * kLanes;
                                  store(to, fma(maximum.factors[r], load(to), x));
                              });
            }
        }
        const HeadRows rows_of_o = item.queries(a.o);
        for (int64_t i = i0; i < i1; i += kStrip) {
            const int64_t rows = std::min(kStrip, i1 - i);
            alignas(64) float totals[kLanes] = {}, factors[kLanes];
            for (int64_t r = 0; r < rows; ++r) totals[r] = sum(load(memory.totals + (i - i0 + r) * kLanes));
            store(factors, 1.0f / load(totals));
            for (int64_t r = 0; r < rows; ++r) {
                rows_of_o.write<typename Kind::Real>(i + r, memory.result + (i - i0 + r) * width, factors[r]);
                log_sums[i + r] = maxima[(i - i0) / kStrip].highest[r] + std::log(totals[r]);
            }
        }
    }
}

}  // namespace speedrun::cpu
