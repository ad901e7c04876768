// Cross-entropy, losses and gradients in one kernel, a block per row.
//
// With a softcap c the capped logits lie in ±c, so c stands in for the maximum and one pass sums the
// exponentials. With q = 2/(e^(2z/c) + 1): c·tanh(z/c) − c = −c·q, and the cap's slope 1 − tanh² = q·(2 − q),
// without cancellation. The products of exponential and slope wait in shared memory for the sum, where they
// fit; otherwise the row is read again (from L2) and computed again. Without a softcap (or with a large one):
// the maximum is kept as the row is read, sums are rescaled when it rises, and the gradient reads the row
// again.
//
// Floor, real of b bytes: 2·T·V·b (logits read, dlogits written), T·V·b without gradient. With softcap 3
// special-function operations an element: 3·T·V / (16 per clock and SM). Legend: T rows, V columns of which
// the first `vocab` are real · W elements of a chunk · z a logit · c softcap.
#include <limits>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

enum class Method : uint8_t { capped_cached, capped, online };

template <class Real>
struct Arguments {
    float* losses;
    Rows<Real> dlogits, logits;
    const int32_t* targets;
    int64_t vocab, padded;
    float softcap, gradient_scale;
    bool has_gradient;
};

__device__ __forceinline__ float cap_gap(float z, float inverse_cap) {  // q; e^x may be infinite
    return __fdividef(2.0f, __expf(2.0f * z * inverse_cap) + 1.0f);
}

// The value of place `chunk`·W + i of the row between the passes. Vectors of four lie `chunks` apart, so that
// neighbouring threads touch neighbouring words.
template <int W>
struct Cache {
    static constexpr int kPart = W < 4 ? W : 4;
    struct alignas(4 * kPart) Part {
        float v[kPart];
    };
    int64_t chunks;

    static int64_t bytes(int64_t chunks) { return chunks * W * int64_t{sizeof(float)}; }
    __device__ __forceinline__ void store(int64_t chunk, const Vector<W>& x) const {
        const auto parts = shared_memory<Part>(kReduceSharedBytes, chunks * (W / kPart));
#pragma unroll
        for (int j = 0; j < W / kPart; ++j) {
            Part part;
#pragma unroll
            for (int i = 0; i < kPart; ++i) part.v[i] = x[j * kPart + i];
            store_word(&parts[j * chunks + chunk], part);
        }
    }
    __device__ __forceinline__ Vector<W> load(int64_t chunk) const {
        const auto parts = shared_memory<Part>(kReduceSharedBytes, chunks * (W / kPart));
        Vector<W> x;
#pragma unroll
        for (int j = 0; j < W / kPart; ++j) {
            const Part part = load_word(&parts[j * chunks + chunk]);
#pragma unroll
            for (int i = 0; i < kPart; ++i) x[j * kPart + i] = part.v[i];
        }
        return x;
    }
};

template <class Real, int W, Method kMethod>
__global__ void __launch_bounds__(tiles::kLossThreads)
    cross_entropy_kernel(Arguments<Real> a, int64_t chunks) {
    constexpr bool kOnline = kMethod == Method::online;
    const int64_t row = blockIdx.x;
    const int32_t target = a.targets[row];
    Real* const out = a.has_gradient ? a.dlogits.at(row) : nullptr;
    const auto chunk_at = [&](int64_t chunk, int64_t end) {
        const int64_t left = end - chunk * W;
        return Chunk<W>{left < W ? static_cast<int>(left < 0 ? 0 : left) : W};
    };
    if (target < 0 || target >= a.vocab) {
        if (threadIdx.x == 0) a.losses[row] = target == -1 ? 0.0f : quiet_nan();
        if (!a.has_gradient) return;
        Vector<W> zero;
#pragma unroll
        for (int i = 0; i < W; ++i) zero[i] = 0.0f;
        for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x)
            chunk_at(chunk, a.padded).store(out + chunk * W, zero);
        return;
    }
    const Real* const in = a.logits.at(row);
    const float target_logit =
        to_float(in[target]);  // before dlogits, which may be the same memory, are written
    const float inverse_cap = kOnline && a.softcap == 0.0f ? 0.0f : 1.0f / a.softcap;
    const bool capped = !kOnline || a.softcap > 0.0f;
    const Cache<W> cache{chunks};

    float maximum = -std::numeric_limits<float>::max(), sum = 0.0f;  // of this thread
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Chunk<W> part = chunk_at(chunk, a.vocab);
        Vector<W> z = part.load(in + chunk * W);
        if constexpr (kOnline) {
            float highest = maximum;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                if (capped) z[i] = a.softcap * (1.0f - cap_gap(z[i], inverse_cap));
                if (i < part.count) highest = fmaxf(highest, z[i]);  // leaves a NaN out, but the sum keeps it
            }
            sum *= __expf(maximum - highest);
            maximum = highest;
#pragma unroll
            for (int i = 0; i < W; ++i) sum += i < part.count ? __expf(z[i] - maximum) : 0.0f;
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const float q = cap_gap(z[i], inverse_cap), e = __expf(-a.softcap * q);
                sum += i < part.count ? e : 0.0f;
                z[i] = e * (q * (2.0f - q));
            }
            if constexpr (kMethod == Method::capped_cached) cache.store(chunk, z);
        }
    }
    const float top = kOnline ? block_max(maximum) : 0.0f;
    const float total = block_sum(kOnline ? sum * __expf(maximum - top) : sum);

    const float target_gap = capped ? cap_gap(target_logit, inverse_cap) : 0.0f;
    if (threadIdx.x == 0) {
        const float below =
            kOnline ? top - (capped ? a.softcap * (1.0f - target_gap) : target_logit)
                    : a.softcap * target_gap;  // of the target under what stands in for the maximum
        a.losses[row] = logf(total) + below;
    }
    if (!a.has_gradient) return;
    const float factor = a.gradient_scale / total;
    const float target_slope = capped ? target_gap * (2.0f - target_gap) : 1.0f;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Chunk<W> part = chunk_at(chunk, a.vocab);
        Vector<W> d;
        if constexpr (kMethod == Method::capped_cached) {
            d = cache.load(chunk);
        } else {
            d = part.load(in + chunk * W);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                if (capped) {
                    const float q = cap_gap(d[i], inverse_cap);
                    d[i] = __expf(kOnline ? a.softcap * (1.0f - q) - top : -a.softcap * q) * (q * (2.0f - q));
                } else {
                    d[i] = __expf(d[i] - top);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < W; ++i) {
            d[i] *= factor;
            if (chunk * W + i == target) d[i] -= a.gradient_scale * target_slope;
            if (i >= part.count) d[i] = 0.0f;  // padding
        }
        chunk_at(chunk, a.padded).store(out + chunk * W, d);
    }
}

// As few threads as do the row in the same number of rounds.
int block_threads(int64_t chunks) {
    const int64_t rounds = (chunks + tiles::kLossThreads - 1) / tiles::kLossThreads;
    const int64_t threads = (chunks + rounds - 1) / rounds;
    return static_cast<int>((threads + tiles::kWarp - 1) / tiles::kWarp * tiles::kWarp);
}

}  // namespace

void CudaOps::cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                            const CrossEntropyOptions& options, Stream& stream) {
    const int64_t rows = logits.rows(), cols = logits.cols();
    check_cross_entropy(losses, dlogits, logits, targets, options);
    if (rows == 0) return;
    cuda::with_real(logits.dtype, [&]<class Real>() {
        const Arguments<Real> arguments{losses.as<float>(),    Rows<Real>(dlogits),    Rows<Real>(logits),
                                        targets.as<int32_t>(), options.vocab_size,     cols,
                                        options.softcap,       options.gradient_scale, dlogits.present()};
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {dlogits, logits}), [&]<int W>() {
            const int64_t chunks = (cols + W - 1) / W, cache = Cache<W>::bytes(chunks);
            const bool bounded = options.softcap > 0.0f && options.softcap <= tiles::kLossMaxSoftcap;
            const bool cached = bounded && dlogits.present() && cache <= tiles::kLossCacheBytes;
            auto* kernel = cached    ? cross_entropy_kernel<Real, W, Method::capped_cached>
                           : bounded ? cross_entropy_kernel<Real, W, Method::capped>
                                     : cross_entropy_kernel<Real, W, Method::online>;
            launch(kernel, grid_of(rows, 1), block_threads(chunks), kReduceSharedBytes + (cached ? cache : 0),
                   stream, arguments, chunks);
        });
    });
}

}  // namespace speedrun
