// Common code of the loss kernels: exponentials, the softcap through g, and threads per row.
//
// Multiply-adds are fused by fmaf: the build forbids the compiler to contract, so that hosts and GPUs agree.
// Legend: W elements of a chunk · z a logit · c softcap.
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

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Softcap for a logit x, with g = 1/(e^(2(x + shift)/d) + 1).
// c·tanh((x + shift)/d) = c·(1 − 2g), and its slope in x is c/d·4g·(1 − g). Without a cap: c = scale = 0 and
// slope 1.
struct Cap {
    float cap, scale, offset, slope;  // c, 2·log₂e/d, shift·scale, c/d
    float largest;  // a bf16; larger logits may be replaced by it: g is at most 2^-30 for both
    uint32_t largest_pair;

    explicit Cap(const Softcap& softcap)
        : cap(softcap.present() ? softcap.cap : 0.0f),
          scale(softcap.present() ? 2 * kLog2E / softcap.divisor() : 0.0f),
          offset(softcap.shift * scale),
          slope(softcap.slope()),
          largest(softcap.present() ? largest_below((kLargestExponent - offset) / scale) : Bf16(0.0f)),
          largest_pair(static_cast<uint32_t>(Bf16(largest).bits) * 0x10001u) {}

    // Logits become their g, which is NaN for all four of a group with a NaN. Four share a reciprocal: three
    // special functions fewer per group, and a relative error of g below 2^-21. A softcap by tanh.approx,
    // whose error is 2^-11, would shift losses by c·2^-11. Chunks of several logits: from bounded().
    template <int W>
    __device__ __forceinline__ void gaps(Vector<W>& x) const {
#pragma unroll
        for (int i = 0; i < W; ++i) x[i] = ptx::exp2_approx(fmaf(x[i], scale, offset));
        if constexpr (W == 1) {
            x[0] = ptx::reciprocal_approx(x[0] + 1.0f);
        } else {
#pragma unroll
            for (int i = 0; i < W; i += kGroup) {
                const float first = x[i] + 1.0f, third = x[i + 2] + 1.0f;
                const float low = fmaf(first, x[i + 1], first), high = fmaf(third, x[i + 3], third);
                const float r = ptx::reciprocal_approx(low * high), of_low = r * high, of_high = r * low;
                x[i] = fmaf(of_low, x[i + 1], of_low);
                x[i + 1] = of_low * first;
                x[i + 2] = fmaf(of_high, x[i + 3], of_high);
                x[i + 3] = of_high * third;
            }
        }
    }
    // Replaces logits above `largest`, so that the product of a group is finite. NaN stays.
    template <int W, class Real>
    __device__ __forceinline__ Packed<W, Real> bounded(Packed<W, Real> x) const {
        if constexpr (W > 1 && sizeof(Real) == 4) {
#pragma unroll
            for (int i = 0; i < W; ++i)
                x.bits[i] = __float_as_uint(ptx::min_nan(__uint_as_float(x.bits[i]), largest));
        } else if constexpr (W > 1) {
#pragma unroll
            for (int i = 0; i < W / 2; ++i) x.bits[i] = ptx::min_nan_bf16(x.bits[i], largest_pair);
        }
        return x;
    }

    // A chunk's g, or the logits without a cap. kAlways: there is a cap.
    template <bool kAlways, int W, class Real>
    __device__ __forceinline__ Vector<W> values(const Packed<W, Real>& logits) const {
        if (!kAlways && cap == 0.0f) return unpack(logits);
        Vector<W> z = unpack(bounded(logits));
        gaps(z);
        return z;
    }
    // The value of one column, with the same bits as in its chunk: a probability near 1 needs equal errors in its
    // exponential and in the sum.
    template <int W, class Real>
    __device__ __forceinline__ float value(const Real* in, int column, int64_t vocab) const {
        const int64_t first = int64_t{column / W} * W;
        const Chunk<W> chunk{static_cast<int>(min(int64_t{W}, vocab - first))};
        Vector<W> z = values<false>(chunk.load_packed(in + first));
        // Halves by the bits of the place: a chain of selections would be an array in local memory on sm_100.
#pragma unroll
        for (int half = W / 2; half > 0; half /= 2) {
            const bool upper = (column & half) != 0;
#pragma unroll
            for (int i = 0; i < half; ++i) z[i] = upper ? z[i + half] : z[i];
        }
        return z[0];
    }
    // The capped logit with this g.
    __device__ __forceinline__ float capped(float g) const {
        return cap * fmaf(-2.0f, g, 1.0f);
    }
    // Slope of the cap at a value.
    __device__ __forceinline__ float slope_at(float g) const {
        return cap > 0.0f ? slope * (4.0f * fmaf(-g, g, g)) : 1.0f;
    }

  private:
    static constexpr int kGroup = 4;
    static constexpr float kLargestExponent = 30.0f;  // a product of kGroup powers of two is below 2^126

    // The largest bf16 that is at most x.
    static Bf16 largest_below(float x) {
        Bf16 y(x);
        if (static_cast<float>(y) > x) y.bits = static_cast<uint16_t>(x > 0 ? y.bits - 1 : y.bits + 1);
        return y;
    }
};

// bounded: the cap is so low that it replaces the maximum. online: the maximum is updated while the row is read.
enum class Method : uint8_t { bounded, online };

inline Method method_of(const Softcap& softcap) {
    return softcap.present() && softcap.cap <= sizes::kLossMaxSoftcap ? Method::bounded : Method::online;
}

// Exponential of a logit times the slope of its cap, relative to 2^exponent: without constant factors.
struct Terms {
    Cap cap;
    float
        exponent;  // bounded: −2c·log₂e, times g. Otherwise the logarithm to base 2 of what e^z is divided by

    // bounded: e^(−2c·g)·g·(1 − g). z: g. Adds the exponentials of the first `count` elements.
    template <int W>
    __device__ __forceinline__ void of_gaps(Vector<W>& z, int count, float& sum) const {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float e = ptx::exp2_approx(exponent * z[i]);
            if (i < count) sum += e;
            z[i] = e * fmaf(-z[i], z[i], z[i]);
        }
    }
    // Without a cap e^z, with one e^(c·tanh)·4g·(1 − g), divided by 2^exponent. z: values of the cap.
    template <int W>
    __device__ __forceinline__ void of_values(Vector<W>& z) const {
        if (cap.cap > 0.0f) {
#pragma unroll
            for (int i = 0; i < W; ++i) z[i] = power(cap.capped(z[i])) * (4.0f * fmaf(-z[i], z[i], z[i]));
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) z[i] = power(z[i]);
        }
    }
    __device__ __forceinline__ float power(float z) const {
        return ptx::exp2_approx(fmaf(z, kLog2E, -exponent));
    }
};

// A thread's sum of exponentials of a row: relative to its maximum, or to the cap.
template <Method kMethod>
struct RowSum {
    static constexpr bool kOnline = kMethod == Method::online;
    // Finite also after multiplication by log₂e, so that the exponential of −∞ is 0.
    float maximum = -0.5f * std::numeric_limits<float>::max(), sum = 0.0f;

    // Adds the first `count` logits of a chunk. bounded: returns the chunk's terms. terms.exponent: bounded only.
    template <int W, class Real>
    __device__ __forceinline__ Vector<W> add(const Packed<W, Real>& chunk, int count, const Terms& terms) {
        Vector<W> z = terms.cap.template values<!kOnline>(chunk);
        if constexpr (!kOnline) {
            terms.of_gaps(z, count, sum);
        } else {
            if (terms.cap.cap > 0.0f) {
#pragma unroll
                for (int i = 0; i < W; ++i) z[i] = terms.cap.capped(z[i]);
            }
            float highest = maximum;
#pragma unroll
            for (int i = 0; i < W; ++i)
                if (i < count) highest = fmaxf(highest, z[i]);  // ignores NaN; the sum keeps it
            sum *= rescaled(highest);
            maximum = highest;
            const Terms relative{terms.cap, highest * kLog2E};
#pragma unroll
            for (int i = 0; i < W; ++i)
                if (i < count) sum += relative.power(z[i]);
        }
        return z;
    }
    // Factor of the sum relative to another maximum.
    __device__ __forceinline__ float rescaled(float to) const {
        return ptx::exp2_approx(maximum * kLog2E - to * kLog2E);
    }
};

// Terms of a row times a factor, rounded to the type of the logits. The product of pairs of bf16 has the factor as a sum of
// two bf16, so that its error is that of one rounding.
template <class Real>
struct Factor {
    float value;
    uint32_t high = 0, low = 0;  // pairs; bf16 only

    explicit __device__ __forceinline__ Factor(float factor) : value(factor) {
        if constexpr (std::is_same_v<Real, Bf16>) {
            high = ptx::pack_bf16(factor, factor);
            const float rest = factor - __uint_as_float(high & 0xffff0000u);
            low = ptx::pack_bf16(rest, rest);
        }
    }
    template <int W>
    __device__ __forceinline__ Packed<W, Real> operator*(const Packed<W, Real>& terms) const {
        constexpr uint32_t kZeros = 0x80008000u;  // −0
        if constexpr (W == 1 || sizeof(Real) == 4) {
            Vector<W> d = unpack(terms);
#pragma unroll
            for (int i = 0; i < W; ++i) d[i] *= value;
            return pack<Real>(d);
        } else {
            Packed<W, Real> d;
#pragma unroll
            for (int i = 0; i < W / 2; ++i)
                d.bits[i] = ptx::fma_bf16(terms.bits[i], high, ptx::fma_bf16(terms.bits[i], low, kZeros));
            return d;
        }
    }
};

// Calls body(chunk, load(chunk)) for a thread's chunks of [begin, end), with two loads in flight.
template <class Load, class Body>
__device__ __forceinline__ void for_chunks(int begin, int end, Load&& load, Body&& body) {
    const int stride = static_cast<int>(blockDim.x);
    int chunk = begin + static_cast<int>(threadIdx.x);
    for (; chunk + stride < end; chunk += 2 * stride) {
        const auto first = load(chunk), second = load(chunk + stride);
        body(chunk, first);
        body(chunk + stride, second);
    }
    if (chunk < end) body(chunk, load(chunk));
}

// Smallest number of threads that processes a row in the same number of rounds as kLossThreads.
inline int block_threads(int64_t chunks) {
    const int64_t rounds = std::max<int64_t>(1, (chunks + sizes::kLossThreads - 1) / sizes::kLossThreads);
    const int64_t threads = std::max<int64_t>(1, (chunks + rounds - 1) / rounds);
    return static_cast<int>((threads + sizes::kWarp - 1) / sizes::kWarp * sizes::kWarp);
}

}  // namespace speedrun::loss
