// Attention with f32 matmuls, at every level. Tensors may be bf16: values are converted to f32. Probabilities
// and their gradients are rounded to bf16, as for bf16 matmuls.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/f32_tile.h"

namespace speedrun::cpu {

template <class RealType>
struct F32Attention {
    using Real = RealType;
    using Word = float;     // element of a panel
    using Element = float;  // type of probabilities
    using Left = F32Rows;
    static constexpr int64_t kPerWord = 1;
    static constexpr int64_t kStrip = 6;  // lines of the left operand held in registers
    static constexpr int64_t kDepth = 1;  // K of a matmul is a multiple of this
#ifdef __AVX512F__
    static constexpr int kVectors = 4;
#else
    static constexpr int kVectors = 1;
#endif

    template <int Rows, int Count>
    static inline __attribute__((always_inline)) void add(Register (&sums)[Rows][Count], Left a,
                                                          const Word* panel, int64_t stride, int64_t words) {
        add_products(sums, a, panel, stride, words);
    }

    // Rows [begin, end) of a head, as f32. Read in place if they are whole f32 vectors and do not conflict
    // for the same few lines of the L1 cache; otherwise copied.
    class Head {
      public:
        static int64_t words(int64_t length, int64_t width) { return length * width; }
        Head(HeadRows x, Range rows, Word* memory) {
            const int64_t dim = x.x.cols(), width = x.width();
            if constexpr (std::is_same_v<Real, float>) {
                data_ = x.row<float>(0);
                stride_ = x.stride();
                if (width == dim && stride_ % 512 != 0) return;
            }
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                const Real* from = x.row<Real>(i);
                for_vectors(
                    dim, [&](int64_t d, auto part) { store(memory + i * width + d, load(from + d, part)); });
            }
            data_ = memory;
            stride_ = width;
        }
        Left left(int64_t i) const { return {data_ + i * stride_, stride_, 1}; }
        const Word* panel(int64_t i) const { return data_ + i * stride_; }
        int64_t stride() const { return stride_; }

      private:
        const float* data_;
        int64_t stride_;
    };
    using LeftHead = Head;  // a head used only as left operand

    // Transposes rows [j, j + count) of a head of x: to[D][kTile].
    static void pack_lines(Word* to, HeadRows x, int64_t j, int64_t count) {
        for (int64_t line = 0; line < count; line += kLanes) {
            for (int64_t d = 0; d < x.x.cols(); d += kLanes) {
                transpose_block(to + d * kTile + line, kTile, x.row<Real>(j + line) + d, x.stride(),
                                std::min(kLanes, count - line), std::min(kLanes, x.x.cols() - d));
            }
        }
    }

    static void store_probabilities(Element* to, Vec p) {
        store(to, rounded_to<Real>(p));
    }
    static Left probabilities(const Element* rows) {
        return {rows, kTile, 1};
    }

    // Probabilities and their gradients for a tile of queries by keys.
    class Gradients {
      public:
        explicit Gradients(Scratch& scratch)
            : probabilities_(scratch.take<float>(kTile * kTile)),
              gradients_(scratch.take<float>(kTile * kTile)) {}
        // Stores p and g of queries i and i + 1 for the 16 keys from j on; i is even.
        void keep(int64_t i, int64_t j, const Vec (&p)[2], const Vec (&g)[2]) {
            for (int64_t r = 0; r < 2; ++r) {
                store(probabilities_ + (i + r) * kTile + j, rounded_to<Real>(p[r]));
                store(gradients_ + (i + r) * kTile + j, rounded_to<Real>(g[r]));
            }
        }
        Left gradients_by_query(int64_t i, int64_t j) const { return {gradients_ + i * kTile + j, kTile, 1}; }
        // Left operand whose rows are the keys from j on, summed over the queries from i on.
        Left gradients_by_key(int64_t i, int64_t j) const { return {gradients_ + i * kTile + j, 1, kTile}; }
        Left probabilities_by_key(int64_t i, int64_t j) const {
            return {probabilities_ + i * kTile + j, 1, kTile};
        }

      private:
        float *probabilities_, *gradients_;
    };
};

}  // namespace speedrun::cpu
