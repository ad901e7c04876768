// Common code of the loss kernels: exponentials, the softcap through g, and threads per row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/ops/loss.h"

namespace speedrun::loss {

// e^x, with one extra rounding of x·log₂e; 0 where the result is subnormal.
__device__ __forceinline__ float exp_approx(float x) {
    return ptx::exp2_approx(x * 1.4426950408889634f);
}
constexpr float kTwiceLog2E = 2.8853900817779268f;
// Softcap for a logit x, with g = 1/(e^(2(x + shift)/d) + 1), where the exponential may be infinite.
// c·tanh((x + shift)/d) = c·(1 − 2g), and its slope in x is c/d·4g·(1 − g). Without a cap: c = scale = 0 and
// slope 1.
struct Cap {
    float cap, scale, offset, slope;  // c, 2·log₂e/d, shift·scale, c/d

    explicit Cap(const Softcap& softcap)
        : cap(softcap.present() ? softcap.cap : 0.0f),
          scale(softcap.present() ? kTwiceLog2E / softcap.divisor() : 0.0f),
          offset(softcap.shift * scale),
          slope(softcap.slope()) {}
    __device__ __forceinline__ float gap(float x) const {
        return ptx::reciprocal_approx(ptx::exp2_approx(fmaf(x, scale, offset)) + 1.0f);
    }
};

// bounded: the cap is so low that it replaces the maximum. online: the maximum is updated while the row is read.
enum class Method : uint8_t { bounded, online };

inline Method method_of(const Softcap& softcap) {
    return softcap.present() && softcap.cap <= sizes::kLossMaxSoftcap ? Method::bounded : Method::online;
}

// The first `count` columns of a row, in chunks.
template <int W>
struct Columns {
    int64_t count;
    __device__ __forceinline__ Chunk<W> chunk(int64_t index) const {
        const int64_t left = count - index * W;
        return Chunk<W>{left < W ? static_cast<int>(left < 0 ? 0 : left) : W};
    }
};

// A thread's sum of exponentials of a row: relative to its maximum, or to the cap.
template <Method kMethod>
struct RowSum {
    static constexpr bool kOnline = kMethod == Method::online;
    float maximum = -std::numeric_limits<float>::max(), sum = 0.0f;

    // Adds a chunk. bounded: z becomes each exponential times g·(1 − g).
    template <int W>
    __device__ __forceinline__ void add(Vector<W>& z, Chunk<W> chunk, const Cap& cap) {
        if constexpr (kOnline) {
            float highest = maximum;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                if (cap.cap > 0.0f) z[i] = cap.cap * (1.0f - 2.0f * cap.gap(z[i]));
                if (i < chunk.count) highest = fmaxf(highest, z[i]);  // ignores NaN; the sum keeps it
            }
            sum *= exp_approx(maximum - highest);
            maximum = highest;
#pragma unroll
            for (int i = 0; i < W; ++i) sum += i < chunk.count ? exp_approx(z[i] - maximum) : 0.0f;
        } else {
            const float exponent = -kTwiceLog2E * cap.cap;  // −2c·log₂e
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const float g = cap.gap(z[i]), e = ptx::exp2_approx(exponent * g);
                sum += i < chunk.count ? e : 0.0f;
                z[i] = e * (g * (1.0f - g));
            }
        }
    }
};

// Destination of a row's gradients. Their type is that of the logits; E5m2: rounded to that type, multiplied
// by 1/scale, then rounded to FP8.
template <class Real, class Out>
struct GradientRow {
    Out* out;
    float inverse;

    __device__ __forceinline__ float scaled(float d) const { return to_float(from_float<Real>(d)) * inverse; }
    // Stores W elements from `col` on, or the remaining ones. FP8: always all W.
    template <int W>
    __device__ __forceinline__ void store(int64_t col, const Chunk<W>& chunk, const Vector<W>& d) const {
        if constexpr (std::is_same_v<Out, E5m2>) {
            Packed<W, E5m2> packed;
#pragma unroll
            for (int i = 0; i < W / 4; ++i)
                packed.bits[i] = ptx::pack_fp8<E5m2>(scaled(d[4 * i]), scaled(d[4 * i + 1]),
                                                     scaled(d[4 * i + 2]), scaled(d[4 * i + 3]));
            expect_aligned<W>(out + col);
            store_word(reinterpret_cast<typename Packed<W, E5m2>::Word*>(out + col), packed.words[0]);
        } else {
            chunk.store(out + col, d);
        }
    }
    __device__ __forceinline__ void store_one(int64_t col, float d) const {
        if constexpr (std::is_same_v<Out, E5m2>) {
            const float x = scaled(d);
            out[col].bits = static_cast<uint8_t>(ptx::pack_fp8<E5m2>(x, x, x, x) & 0xffu);
        } else {
            out[col] = from_float<Real>(d);
        }
    }
};
template <class Real, class Out>
struct Gradients {
    Rows<Out> rows;
    const float* scale;  // FP8 only; 0 gives zeros

    template <class Operation>
    explicit Gradients(const Operation& a) : rows(a.dlogits), scale(a.scale.template as<float>()) {}
    __device__ __forceinline__ GradientRow<Real, Out> row(int64_t row) const {
        float inverse = 1.0f;
        if constexpr (std::is_same_v<Out, E5m2>) inverse = *scale == 0.0f ? 0.0f : 1.0f / *scale;
        return {rows.at(row), inverse};
    }
};

// Smallest number of threads that processes a row in the same number of rounds as kLossThreads.
inline int block_threads(int64_t chunks) {
    const int64_t rounds = std::max<int64_t>(1, (chunks + sizes::kLossThreads - 1) / sizes::kLossThreads);
    const int64_t threads = std::max<int64_t>(1, (chunks + rounds - 1) / rounds);
    return static_cast<int>((threads + sizes::kWarp - 1) / sizes::kWarp * sizes::kWarp);
}

// Calls body.template operator()<Out, W>() with the type of dlogits and the elements per access. FP8 rows are
// always aligned.
template <class Real, class Operation, class Body>
void with_gradients(const Operation& a, Body&& body) {
    constexpr int kWidth = kVectorWidth<Real>;
    if (a.scale.present()) return body.template operator()<E5m2, kWidth>();
    if (aligned_rows(kWidth, {a.dlogits, a.logits})) return body.template operator()<Real, kWidth>();
    body.template operator()<Real, 1>();
}

}  // namespace speedrun::loss
