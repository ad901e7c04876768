// Matmuls of strips in attention, for either kind (attention_f32.h, attention_bf16.h).
#pragma once

#include "kernels/cpu/attention_item.h"

namespace speedrun::cpu {

// Calls store(row, vector, sums) for up to Kind::kStrip rows of `a` times `vectors` vectors of the panel.
template <class Kind, class Store>
inline void product(int64_t rows, int64_t vectors, typename Kind::Left a, const typename Kind::Word* panel,
                    int64_t stride, int64_t words, Store&& store) {
    constexpr int64_t kStrip = Kind::kStrip;
    const auto tile = [&]<int Rows, int Vectors>(int64_t i, int64_t v) __attribute__((always_inline)) {
        Register sums[Rows][Vectors * kRegisters] = {};
        auto strip = a;
        strip.data += i * a.row;
        Kind::add(sums, strip, panel + v * kLanes, stride, words);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
            for (int w = 0; w < Vectors; ++w) store(i + r, v + w, vector_of(sums[r], w));
        }
    };
    const auto columns = [&]<int Vectors>(int64_t v) __attribute__((always_inline)) {
        if (rows == kStrip) return tile.template operator()<kStrip, Vectors>(0, v);
        int64_t i = 0;
        if (rows >= 4) {
            tile.template operator()<4, Vectors>(0, v);
            i = 4;
        }
        for (; i < rows; ++i) tile.template operator()<1, Vectors>(i, v);
    };
    int64_t v = 0;
    if constexpr (Kind::kVectors == 4) {
        for (; v + 4 <= vectors; v += 4) columns.template operator()<4>(v);
        for (; v + 2 <= vectors; v += 2) columns.template operator()<2>(v);
    }
    for (; v < vectors; ++v) columns.template operator()<1>(v);
}

}  // namespace speedrun::cpu
