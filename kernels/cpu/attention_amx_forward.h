// Attention forward with AMX: 32 queries at a time, each against up to 128 visible keys at a time. Empty if
// the compiler was not given avx512_bf16.
#pragma once

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_forward.h"

#ifdef SPEEDRUN_AMX_TILES

#include <cmath>

namespace speedrun::cpu {

constexpr int64_t kKeysPerPass = 4 * kSide;

template <>
struct ForwardMemory<AmxAttention> {
    int32_t* value_lines;    // [blocks][D][16]
    int32_t* query_columns;  // [D/2][32]
    float* scores;           // [128][32]
    int32_t* probabilities;  // [64][32], of two keys
    float* result;           // [D][32]
    Bf16* last_keys;         // [32][D]
    int64_t bytes;

    ForwardMemory(const op::AttentionForward& a, void* memory) {
        const int64_t width = a.options.head_dim, keys = round_up(a.options.sequence_length, kSide);
        Scratch scratch(memory);
        value_lines = scratch.take<int32_t>(keys / 2 * width);
        query_columns = scratch.take<int32_t>(width / 2 * kSide);
        scores = scratch.take<float>(kKeysPerPass * kSide);
        probabilities = scratch.take<int32_t>(kKeysPerPass / 2 * kSide);
        result = scratch.take<float>(width * kSide);
        last_keys = scratch.take<Bf16>(kSide * width);
        bytes = scratch.bytes();
    }
};

// Up to 32 queries, with the online softmax: results are relative to the running maximum.
class AmxForwardBlock {
  public:
    AmxForwardBlock(const AttentionItem& item, Range queries, const op::AttentionForward& a,
                    const ForwardMemory<AmxAttention>& memory)
        : item_(item), m_(memory), queries_(queries), view_(item, queries) {
        std::fill(m_.result, m_.result + item.o.head_dim * kSide, 0.0f);
        pack_as_columns(m_.query_columns, item.queries(a.q), queries.begin, queries.end - queries.begin);
    }
    void run(const BlockRows& keys, int64_t first_line) {
        // Aligned to multiples of 128 keys, so that the bits of a query are independent of the other queries
        // in its block.
        const Range blocks = view_.blocks();
        for (int64_t j = blocks.begin; j < blocks.end;) {
            const int64_t end = std::min(j / kKeysPerPass * kKeysPerPass + kKeysPerPass, blocks.end);
            run(keys, {j, end}, first_line);
            j = end;
        }
    }
    void finish(HeadRows o, float* log_sums) const {
        alignas(64) float factors[kSide], totals[kSide], highest[kSide];
        for (int64_t v = 0; v < kSideVectors; ++v) {
            store(factors + v * kLanes,
                  select(totals_[v] <= Vec{}, 0.0f, 1.0f / totals_[v]));  // 0: no visible key
            store(totals + v * kLanes, totals_[v]);
            store(highest + v * kLanes, highest_[v]);
        }
        const int64_t count = queries_.end - queries_.begin;
        write_columns(o, queries_.begin, count, m_.result, factors);
        for (int64_t i = 0; i < count; ++i) log_sums[queries_.begin + i] = highest[i] + std::log(totals[i]);
    }

  private:
    void run(const BlockRows& keys, Range at, int64_t first_line) {
        const int64_t width = item_.o.head_dim;
        for (int64_t j = at.begin; j < at.end; j += kSide)
            multiply_lines<false>(row(at, j), kSideBytes, keys.at(j),
                                  reinterpret_cast<const char*>(m_.query_columns), kSideBytes, width / 2);
        Vec factors[kSideVectors], subtract[kSideVectors];
        bool same = true;
        for (int64_t v = 0; v < kSideVectors; ++v) {
            const Vec before = highest_[v];
            highest_[v] = max(before, highest(at, v));
            subtract[v] = select(kMasked < highest_[v], highest_[v], 0.0f);  // no visible key yet: all are 0
            factors[v] = exp(before - subtract[v]);
            same = same && !any(factors[v] < 1.0f);
        }
        if (!same && at.begin > view_.blocks().begin) {
            for (int64_t d = 0; d < width; ++d) {
                for (int64_t v = 0; v < kSideVectors; ++v) {
                    float* to = m_.result + d * kSide + v * kLanes;
                    store(to, factors[v] * load(to));
                }
            }
        }
        for (int64_t v = 0; v < kSideVectors; ++v)
            totals_[v] = fma(factors[v], totals_[v], exponentials(at, v, -kLog2OfE * subtract[v]));
        const char* lines =
            reinterpret_cast<const char*>(m_.value_lines) + (at.begin - first_line) * width * 2;
        for (int64_t d = 0; d < width; d += kSide)
            multiply_lines<false, true>(
                m_.result + d * kSide, kSideBytes, {lines + d * kAmxBytes, kAmxBytes, width * kAmxBytes},
                reinterpret_cast<const char*>(m_.probabilities), kSideBytes, (at.end - at.begin) / 2);
    }
    float* row(Range at, int64_t key) const { return m_.scores + (key - at.begin) * kSide; }
    Vec score(Range at, int64_t key, int64_t v) const {
        return item_.o.scale * load(row(at, key) + v * kLanes);
    }

    // Maximum scores of the queries of vector v.
    Vec highest(Range at, int64_t v) const {
        Vec even = kMasked, odd = kMasked;
        for (int64_t block = at.begin; block < at.end; block += kSide) {
            const auto pairs = [&](auto&& seen) {
                for (int64_t j = block; j < block + kSide; j += 2) {
                    even = max(even, seen(j, score(at, j, v)));
                    odd = max(odd, seen(j + 1, score(at, j + 1, v)));
                }
            };
            if (view_.clear(block))
                pairs([](int64_t, Vec x) { return x; });
            else
                pairs([&](int64_t j, Vec x) { return view_.show(v, j, x, kMasked); });
        }
        return max(even, odd);
    }
    // Stores the probabilities of vector v, 2^(log2(e)·score + shift), and returns their sums.
    Vec exponentials(Range at, int64_t v, Vec shift) const {
        const Vec scale = kLog2OfE * item_.o.scale;
        const auto probability = [&](int64_t j) {
            return exp2(fma(scale, load(row(at, j) + v * kLanes), shift));
        };
        Vec even{}, odd{};
        for (int64_t block = at.begin; block < at.end; block += kSide) {
            const auto pairs = [&](auto&& seen) {
                for (int64_t j = block; j < block + kSide; j += 2) {
                    const Vec p = seen(j, probability(j)), q = seen(j + 1, probability(j + 1));
                    _mm512_store_si512(m_.probabilities + (j - at.begin) / 2 * kSide + v * kLanes,
                                       words_of(to_bf16(p), to_bf16(q)));
                    even += p;
                    odd += q;
                }
            };
            if (view_.clear(block))
                pairs([](int64_t, Vec x) { return x; });
            else
                pairs([&](int64_t j, Vec x) { return view_.show(v, j, x, 0.0f); });
        }
        return even + odd;
    }

    const AttentionItem& item_;
    const ForwardMemory<AmxAttention>& m_;
    const Range queries_;
    const QueryBlock view_;
    Vec highest_[kSideVectors] = {kMasked, kMasked}, totals_[kSideVectors];
};

// The queries [queries.begin, queries.end) of one head.
template <>
inline void attention_forward<AmxAttention>(const AttentionItem& item, Range queries,
                                            const op::AttentionForward& a,
                                            const ForwardMemory<AmxAttention>& memory) {
    const AmxShapes shapes;
    const int64_t end = item.key_end(queries.end);
    const int64_t first = std::min(item.low_range(queries.begin, queries.end).begin, end) / kSide * kSide;
    const HeadRows values = item.keys(a.v);
    for (int64_t j = first; j < end; j += kSide)
        pack_as_lines(memory.value_lines + (j - first) / 2 * item.o.head_dim, values, j,
                      std::min(kSide, end - j));
    const BlockRows keys(item.keys(a.k), item.counts.keys, memory.last_keys);
    for (int64_t i = queries.begin; i < queries.end; i += kSide) {
        AmxForwardBlock block(item, {i, std::min(i + kSide, queries.end)}, a, memory);
        block.run(keys, first);
        block.finish(item.queries(a.o), item.log_sums(a.lse));
    }
}

}  // namespace speedrun::cpu

#endif
