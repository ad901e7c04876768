// Attention by products of whole tiles (amx_bf16), of heads whose dimension is a multiple of 32. What is
// rounded, and where, is as in attention_bf16.h; sums run over 32 queries or keys at a time, so whatever
// stands beyond the last real one is zero. Empty where the compiler was not given avx512_bf16.
#pragma once

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/attention_bf16.h"

#ifdef SPEEDRUN_AMX_TILES

namespace speedrun::cpu {

struct AmxAttention : Bf16Attention {
    using Left = AmxLines;
    static constexpr int64_t kStrip = kAmxRows;
    static constexpr int64_t kDepth = kAmxDepth;
    using Unit = AmxShapes;

    static bool serves(const AttentionOptions& options) { return options.head_dim % kDepth == 0; }

    class LeftHead {
      public:
        LeftHead(const AttentionItem& /*item*/, HeadRows x, Range /*rows*/, Word* /*memory*/)
            : data_(reinterpret_cast<const char*>(x.row<Bf16>(0))), stride_(x.stride() * 2) {}
        Left left(int64_t i) const { return {data_ + i * stride_, stride_, kAmxBytes}; }

      private:
        const char* data_;
        int64_t stride_;
    };
    class Head : public LeftHead {
      public:
        static int64_t words(int64_t length, int64_t width) { return round_up(length, kDepth) / 2 * width; }
        Head(const AttentionItem& item, HeadRows x, Range rows, Word* memory)
            : LeftHead(item, x, rows, memory), pairs_(item, x, rows, memory) {
            Word* const end = memory + words(rows.end, item.width);
            std::fill(memory + (rows.end + 1) / 2 * item.width, end, 0);
        }
        const Word* panel(int64_t i) const { return pairs_.panel(i); }
        int64_t stride() const { return pairs_.stride(); }

      private:
        Bf16Attention::Head pairs_;
    };

    static void pack_lines(Word* to, const AttentionItem& item, HeadRows x, int64_t j, int64_t count) {
        Bf16Attention::pack_lines(to, item, x, j, count);
        const int64_t packed = round_up(count, kLanes);
        for (int64_t pair = 0; packed < kTile && pair < item.width / 2; ++pair)
            std::fill(to + pair * kTile + packed, to + (pair + 1) * kTile, 0);
    }

    static Left probabilities(const Element* rows) {
        return {reinterpret_cast<const char*>(rows), kTile * 2, kAmxBytes};
    }

    // Probabilities and their gradients are kept by pairs of queries and then turned into rows of keys.
    class Gradients : public Bf16Attention::Gradients {
      public:
        explicit Gradients(Scratch& scratch)
            : Bf16Attention::Gradients(scratch),
              probabilities_by_key_(scratch.take<Word>(kTile * kTile / 2)),
              gradients_by_key_(scratch.take<Word>(kTile * kTile / 2)) {}
        void finish(int64_t queries) {
            turn(probabilities_by_key_, probabilities_, queries);
            turn(gradients_by_key_, gradients_, queries);
        }
        Left gradients_by_query(int64_t i, int64_t j) const { return probabilities(rows_ + i * kTile + j); }
        Left gradients_by_key(int64_t i, int64_t j) const { return by_key(gradients_by_key_, i, j); }
        Left probabilities_by_key(int64_t i, int64_t j) const { return by_key(probabilities_by_key_, i, j); }

      private:
        // to[key][queries/2] = from[queries/2][key], zero from `queries` on up to a multiple of 32.
        static void turn(Word* to, const Word* from, int64_t queries) {
            for (int64_t pair = 0; 2 * pair < queries; pair += kLanes) {
                for (int64_t key = 0; key < kTile; key += kLanes) {
                    __m512i words[kLanes];
                    for (int64_t p = 0; p < kLanes; ++p) {
                        words[p] = 2 * (pair + p) < queries
                                       ? _mm512_load_si512(from + (pair + p) * kTile + key)
                                       : _mm512_setzero_si512();
                    }
                    transpose_words(words);
                    for (int64_t k = 0; k < kLanes; ++k)
                        _mm512_store_si512(to + (key + k) * kTile / 2 + pair, words[k]);
                }
            }
        }
        static Left by_key(const Word* x, int64_t i, int64_t j) {
            return probabilities(reinterpret_cast<const Bf16*>(x) + j * kTile + i);
        }
        Word *probabilities_by_key_, *gradients_by_key_;
    };

    // store(row, vector, sums) of up to 16 rows of `a` times `vectors` vectors, an even number, of the panel;
    // words is a multiple of 16.
    template <class Store>
    static void product(int64_t rows, int64_t vectors, Left a, const Word* panel, int64_t stride,
                        int64_t words, Store&& store) {
        alignas(64) float sums[kStrip * kAmxColumns];
        if (rows != kStrip) AmxShapes::set(rows, rows);
        for (int64_t v = 0; v < vectors; v += kAmxColumns / kLanes) {
            const char* right = reinterpret_cast<const char*>(panel + v * kLanes);
            const int64_t count = std::min(vectors - v, kAmxColumns / kLanes);
            if (count == kAmxColumns / kLanes)
                multiply_strip<kAmxColumns / kLanes>(sums, a, right, stride * kWordBytes, words);
            else
                multiply_strip<2>(sums, a, right, stride * kWordBytes, words);
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t w = 0; w < count; ++w)
                    store(r, v + w, load(sums + r * kAmxColumns + w * kLanes));
            }
        }
        if (rows != kStrip) AmxShapes::set(kStrip, kStrip);
    }
};

}  // namespace speedrun::cpu

#endif
