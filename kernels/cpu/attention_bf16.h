// Attention with bf16 matmuls. Probabilities and their gradients are rounded to bf16 before they are
// multiplied, as on GPUs. Empty if the compiler was not given avx512_bf16.
#pragma once

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/bf16_tile.h"

#ifdef SPEEDRUN_BF16_TILES

namespace speedrun::cpu {

struct Bf16Attention {
    using Real = Bf16;
    using Word = int32_t;  // element of a panel: a pair of rows
    using Element = Bf16;  // type of probabilities
    using Left = PairRows;
    static constexpr int64_t kPerWord = 2;
    static constexpr int64_t kStrip = 6;
    static constexpr int64_t kDepth = 2;
    static constexpr int kVectors = 4;

    template <int Rows, int Count>
    static inline __attribute__((always_inline)) void add(Register (&sums)[Rows][Count], Left a,
                                                          const Word* panel, int64_t stride, int64_t words) {
        add_pairs(sums, a, reinterpret_cast<const char*>(panel), stride * kWordBytes, words);
    }

    // A head used only as left operand: its rows are read in place.
    class LeftHead {
      public:
        LeftHead(HeadRows x, Range /*rows*/, Word* /*memory*/)
            : data_(reinterpret_cast<const char*>(x.row<Bf16>(0))), stride_(x.stride() * 2) {}
        Left left(int64_t i) const { return {data_ + i * stride_, stride_, kWordBytes}; }

      private:
        const char* data_;
        int64_t stride_;
    };
    // Rows [begin, end) of a head, also packed in pairs; begin is even.
    class Head : public LeftHead {
      public:
        static int64_t words(int64_t length, int64_t width) { return (length + 1) / 2 * width; }
        Head(HeadRows x, Range rows, Word* memory)
            : LeftHead(x, rows, memory), pairs_(memory), width_(x.width()) {
            pack_from_rows(reinterpret_cast<char*>(memory + rows.begin / 2 * width_), width_ * kWordBytes,
                           x.row<Bf16>(rows.begin), x.stride(), width_, rows.end - rows.begin);
        }
        const Word* panel(int64_t i) const { return pairs_ + i / 2 * width_; }
        int64_t stride() const { return width_; }

      private:
        const Word* pairs_;
        int64_t width_;
    };

    // Transposes rows [j, j + count) of a head of x: to[D/2][kTile].
    static void pack_lines(Word* to, HeadRows x, int64_t j, int64_t count) {
        pack_from_columns(reinterpret_cast<char*>(to), kTile * kWordBytes, x.row<Bf16>(j), x.stride(), count,
                          x.width());
    }

    static void store_probabilities(Element* to, Vec p) { store(to, p); }
    static Left probabilities(const Element* rows) {
        return {reinterpret_cast<const char*>(rows), kTile * 2, kWordBytes};
    }

    // Probabilities and their gradients for a tile of queries by keys, as words of two queries; gradients
    // also row by row.
    class Gradients {
      public:
        explicit Gradients(Scratch& scratch)
            : probabilities_(scratch.take<Word>(kTile * kTile / 2)),
              gradients_(scratch.take<Word>(kTile * kTile / 2)),
              rows_(scratch.take<Bf16>(kTile * kTile)) {}
        // Stores p and g of queries i and i + 1 for the 16 keys from j on; i is even.
        void keep(int64_t i, int64_t j, const Vec (&p)[2], const Vec (&g)[2]) {
            const __m256i even = to_bf16(g[0]), odd = to_bf16(g[1]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(rows_ + i * kTile + j), even);
            _mm256_store_si256(reinterpret_cast<__m256i*>(rows_ + (i + 1) * kTile + j), odd);
            _mm512_store_si512(gradients_ + i / 2 * kTile + j, words_of(even, odd));
            _mm512_store_si512(probabilities_ + i / 2 * kTile + j, words_of(to_bf16(p[0]), to_bf16(p[1])));
        }
        Left gradients_by_query(int64_t i, int64_t j) const {
            return {reinterpret_cast<const char*>(rows_ + i * kTile + j), kTile * 2, kWordBytes};
        }
        // Left operand whose rows are the keys from j on, summed over the queries from i on; i is even.
        Left gradients_by_key(int64_t i, int64_t j) const { return by_key(gradients_, i, j); }
        Left probabilities_by_key(int64_t i, int64_t j) const { return by_key(probabilities_, i, j); }

      private:
        static Left by_key(const Word* x, int64_t i, int64_t j) {
            return {reinterpret_cast<const char*>(x + i / 2 * kTile + j), kWordBytes, kTile * kWordBytes};
        }
        Word *probabilities_, *gradients_;
        Bf16* rows_;
    };
};

}  // namespace speedrun::cpu

#endif
