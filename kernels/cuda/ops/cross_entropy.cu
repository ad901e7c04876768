// Cross-entropy: losses and gradients in one kernel, one block per row.
//
// With a softcap c the capped logits are within ±c, so c replaces the maximum and one pass sums the
// exponentials. With g = 1/(e^(2(z + shift)/d) + 1): c·tanh((z + shift)/d) − c = −2c·g. The cap's slope is
// c/d·(1 − tanh²) = c/d·4g·(1 − g), without cancellation for large z. The terms e^(−2c·g)·g·(1 − g) of the
// first chunks of a row are cached in shared memory until the sum is known. The cache leaves room for a
// second block per multiprocessor, which loads while this one stores. Other chunks are reloaded (from L2) and
// recomputed, to the same bits. Without a softcap, or with a large one, the maximum is updated while the row
// is read, and sums are rescaled when it rises. The gradient pass then reads the row again.
//
// The blocks also transpose FP8 gradients, after their rows: finished_rows.cuh.
//
// Roofline bound, real of b bytes: 2·T·V·b (logits read, dlogits written), T·V·b without gradient, T·V·(b +
// 2) with FP8 gradients. With softcap 3 special-function operations per element and pass: up to 6·T·V / (16
// per clock and SM). Legend: T rows, V columns of which the first `vocab` are valid · W elements of a chunk ·
// z a logit · c softcap.
#include <algorithm>
#include <limits>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cross_entropy.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/finished_rows.cuh"

namespace speedrun {

namespace cross_entropy_cu {
namespace {

template <class Real, class Out>
struct Arguments {
    float* losses;
    loss::Gradients<Real, Out> dlogits;
    Rows<Real> logits;
    const int32_t* targets;
    int64_t target_stride;  // stride between targets of a row
    const float* weights;   // null: one target
    int num_targets;
    int64_t vocab, padded;
    loss::Cap cap;
    float gradient_scale;
    bool has_gradient;
};

using loss::block_threads, loss::Columns, loss::exp_approx, loss::kTwiceLog2E, loss::Method;

// Cached values of a row's first `chunks` chunks. Vectors of four are `chunks` apart, so that adjacent
// threads access adjacent words.
template <int W>
struct Cache {
    static constexpr int kPart = W < 4 ? W : 4;
    struct alignas(4 * kPart) Part {
        float v[kPart];
    };
    int64_t chunks;

    // Number of chunks of a row that fit `bytes` of shared memory: all of them, else a multiple of the warp
    // size.
    static int64_t chunks_of(int64_t row_chunks, int64_t bytes) {
        const int64_t room = bytes / (W * int64_t{sizeof(float)});
        return row_chunks <= room ? row_chunks : room / sizes::kWarp * sizes::kWarp;
    }
    int64_t bytes() const { return chunks * W * int64_t{sizeof(float)}; }
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

// Targets of a row, per thread: the one whose loss the thread adds (-1: none) and its weight; the sum of all
// weights; and a bit for each target whose chunk the thread stores.
struct RowTargets {
    int32_t target = -1;
    float own = 0.0f, weight = 0.0f;
    uint32_t stored_here = 0;
    bool valid = true, counts = false;
};

template <int W, class Arguments>
__device__ __forceinline__ RowTargets several_targets(const Arguments& a, int64_t row) {
    RowTargets all;
    for (int k = 0; k < a.num_targets; ++k) {
        const int32_t id = a.targets[k * a.target_stride + row];
        const float weight = a.weights[k];
        all.valid = all.valid && id >= -1 && id < a.vocab;
        if (id < 0) continue;
        all.counts = true;
        all.weight += weight;
        if (static_cast<int>(threadIdx.x) == k) {
            all.target = id;
            all.own = weight;
        }
        if (threadIdx.x == id / W % blockDim.x) all.stored_here |= 1u << k;
    }
    return all;
}

// Out: element type of dlogits.
template <class Real, class Out, int W, Method kMethod, bool kSeveral>
__device__ __forceinline__ void row_loss(const Arguments<Real, Out>& a, int64_t row, int64_t chunks,
                                         const Cache<W>& cache) {
    constexpr bool kOnline = kMethod == Method::online;
    RowTargets all;
    if constexpr (kSeveral) all = several_targets<W>(a, row);
    const int32_t target = kSeveral ? all.target : a.targets[row];
    const bool valid = kSeveral ? all.valid : target >= -1 && target < a.vocab;
    if (!valid || !(kSeveral ? all.counts : target >= 0)) {
        if (threadIdx.x == 0) a.losses[row] = valid ? 0.0f : quiet_nan();
        if (!a.has_gradient) return;
        const loss::GradientRow<Real, Out> out = a.dlogits.row(row);
        Vector<W> zero;
#pragma unroll
        for (int i = 0; i < W; ++i) zero[i] = 0.0f;
        for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x)
            out.store(chunk * W, Columns<W>{a.padded}.chunk(chunk), zero);
        return;
    }
    const Real* const in = a.logits.at(row);
    // Load before dlogits, which may alias logits, are written.
    const float target_logit = kSeveral && target < 0 ? 0.0f : to_float(in[target]);
    const loss::Cap cap = a.cap;
    const bool capped = !kOnline || cap.cap > 0.0f;
    const float exponent = -kTwiceLog2E * cap.cap;  // −2c·log₂e

    loss::RowSum<kMethod> of_thread;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Chunk<W> part = Columns<W>{a.vocab}.chunk(chunk);
        Vector<W> z = part.load(in + chunk * W);
        of_thread.add(z, part, cap);
        if (!kOnline && chunk < cache.chunks) cache.store(chunk, z);
    }
    const float top = kOnline ? block_max(of_thread.maximum) : 0.0f;
    const float total =
        block_sum(kOnline ? of_thread.sum * exp_approx(of_thread.maximum - top) : of_thread.sum);

    const float target_gap = capped ? cap.gap(target_logit) : 0.0f;
    const float target_capped = capped ? cap.cap * (1.0f - 2.0f * target_gap) : target_logit;
    // log(Σ exp(z − top)) + top − z of the target. Without a running maximum, top is the softcap, which no
    // capped logit exceeds. The target's capped logit is 2·softcap·target_gap below it.
    const auto loss = [&] {
        return logf(total) + (kOnline ? top - target_capped : 2.0f * cap.cap * target_gap);
    };
    if constexpr (kSeveral) {
        if (warp_index() == 0) {  // warp 0 has all targets
            const float sum_of_losses = warp_sum(target < 0 ? 0.0f : all.own * loss());
            if (threadIdx.x == 0) a.losses[row] = sum_of_losses;
        }
    } else {
        if (threadIdx.x == 0) a.losses[row] = loss();
    }
    if (!a.has_gradient) return;
    const loss::GradientRow<Real, Out> out = a.dlogits.row(row);
    const float scaled = kSeveral ? a.gradient_scale * all.weight : a.gradient_scale;
    const float factor = (kOnline ? 1.0f : 4.0f) * (cap.slope * scaled) / total;
    // Exponential times slope, before multiplication by the sum's factor, as cached.
    const auto term = [&](float z) {
        if (!capped) return exp_approx(z - top);
        const float g = cap.gap(z), slope = g * (1.0f - g);
        if constexpr (kOnline) return exp_approx(cap.cap * (1.0f - 2.0f * g) - top) * (4.0f * slope);
        return ptx::exp2_approx(exponent * g) * slope;
    };
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Chunk<W> part = Columns<W>{a.vocab}.chunk(chunk);
        Vector<W> d;
        if (chunk < cache.chunks) {
            d = cache.load(chunk);
        } else {
            d = part.load(in + chunk * W);
#pragma unroll
            for (int i = 0; i < W; ++i) d[i] = term(d[i]);
        }
#pragma unroll
        for (int i = 0; i < W; ++i) d[i] = i < part.count ? d[i] * factor : 0.0f;  // padding
        if constexpr (kSeveral) {
            for (int k = 0; k < a.num_targets && all.stored_here != 0; ++k) {
                const int32_t id = a.targets[k * a.target_stride + row];
                if ((all.stored_here >> k & 1u) == 0 || id / W != chunk) continue;
                const float gap = capped ? cap.gap(to_float(in[id])) : 0.0f;
                const float slope = capped ? cap.slope * (4.0f * gap * (1.0f - gap)) : 1.0f;
                const float share = a.gradient_scale * a.weights[k] * slope;
#pragma unroll
                for (int i = 0; i < W; ++i) d[i] -= i == id % W ? share : 0.0f;
            }
        }
        out.store(chunk * W, Columns<W>{a.padded}.chunk(chunk), d);
    }
    // Corrects the target's gradient, in the thread that has stored its chunk. With several targets it has
    // been added before.
    if (!kSeveral && threadIdx.x == target / W % blockDim.x) {
        const float slope = capped ? cap.slope * (4.0f * target_gap * (1.0f - target_gap)) : 1.0f;
        out.store_one(target, term(target_logit) * factor - a.gradient_scale * slope);
    }
}

// finished: only for FP8 gradients.
template <class Real, class Out, int W, Method kMethod, bool kSeveral>
__global__ void __launch_bounds__(sizes::kLossThreads, 2)
    cross_entropy_kernel(Arguments<Real, Out> a, int64_t chunks, Cache<W> cache, FinishedRows finished) {
    wait_for_kernels_before();
    const int64_t row = blockIdx.x;
    row_loss<Real, Out, W, kMethod, kSeveral>(a, row, chunks, cache);
    if constexpr (std::is_same_v<Out, E5m2>) finished.finish(row);
}

// Returns the largest dynamic shared memory, in bytes, with which a multiprocessor runs two blocks. A multiprocessor has the
// memory of its largest block and 1 KiB, which CUDA reserves in each block (CUDA C++ Programming Guide, "Compute Capabilities").
int64_t shared_memory_of_half(Stream& stream) {
    constexpr int64_t kReserved = 1 << 10;
    return (max_shared_memory(stream) + kReserved) / 2 - kReserved;
}

template <class Real, class Out, int W>
void launch_loss(const op::CrossEntropy& a, const FinishedRows& finished, LaunchSite site) {
    const int64_t rows = a.logits.rows(), cols = a.logits.cols();
    const bool several = a.weights.present();
    const Arguments<Real, Out> arguments{a.losses.as<float>(),
                                         loss::Gradients<Real, Out>(a),
                                         Rows<Real>(a.logits),
                                         a.targets.as<int32_t>(),
                                         several ? a.targets.row_stride : 0,
                                         several ? a.weights.as<float>() : nullptr,
                                         several ? static_cast<int>(a.weights.numel()) : 1,
                                         a.vocab_size,
                                         cols,
                                         loss::Cap(a.softcap),
                                         a.gradient_scale,
                                         a.dlogits.present()};
    const int64_t chunks = (cols + W - 1) / W;
    const bool bounded = loss::method_of(a.softcap) == Method::bounded;
    const int64_t room =
        std::min(sizes::kLossCacheBytes, shared_memory_of_half(site.stream) - kReduceSharedBytes);
    const Cache<W> cache{bounded && a.dlogits.present() ? Cache<W>::chunks_of(chunks, room) : 0};
    auto* kernel = bounded ? cross_entropy_kernel<Real, Out, W, Method::bounded, false>
                           : cross_entropy_kernel<Real, Out, W, Method::online, false>;
    if (several) {
        kernel = bounded ? cross_entropy_kernel<Real, Out, W, Method::bounded, true>
                         : cross_entropy_kernel<Real, Out, W, Method::online, true>;
    }
    launch(kernel, grid_of(rows, 1), block_threads(chunks), kReduceSharedBytes + cache.bytes(), site,
           arguments, chunks, cache, finished);
}

}  // namespace
}  // namespace cross_entropy_cu

void CudaOps::enqueue(const op::CrossEntropy& a, Stream& stream) {
    using namespace cross_entropy_cu;
    if (a.logits.rows() == 0) return;
    const LaunchSite site(stream);
    const FinishedRows finished = finished_rows(
        a, [&](int64_t bytes) { return workspace(stream, bytes); }, site);
    cuda::with_real(a.logits.dtype, [&]<class Real>() {
        loss::with_gradients<Real>(a,
                                   [&]<class Out, int W>() { launch_loss<Real, Out, W>(a, finished, site); });
    });
}

}  // namespace speedrun
