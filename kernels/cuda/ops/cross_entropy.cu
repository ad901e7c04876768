// Cross-entropy: losses and gradients in one kernel, one block per row.
//
// With a softcap c the capped logits are within ±c, so c replaces the maximum and one pass sums the
// exponentials. With g = 1/(e^(2(z + shift)/d) + 1): c·tanh((z + shift)/d) − c = −2c·g. The cap's slope is
// c/d·(1 − tanh²) = c/d·4g·(1 − g), without cancellation for large z. The terms e^(−2c·g)·g·(1 − g) are rounded
// to the logits' type and cached in shared memory until the sum is known: a whole row of 50,304 bf16, or less
// where two blocks do not fit a multiprocessor, so that one loads while the other stores. Other chunks are
// reloaded (from L2) and recomputed, to the same bits. A bf16 gradient is thus rounded twice, by at most 2^-8 in
// all; rounding of the bf16 logits changes it by |z|·2^-9. Sums and losses are not rounded. Without a softcap, or
// with a large one, the maximum is updated while the row is read, and sums are rescaled when it rises. The cache
// then has the logits, and the gradient pass computes the exponentials again.
//
// The blocks also transpose FP8 gradients, after their rows: finished_rows.cuh.
//
// Roofline bound, real of b bytes: 2·T·V·b (logits read, dlogits written), T·V·b without gradient, T·V·(b +
// 2) with FP8 gradients. With softcap 2.25 special functions per element, of 16 per clock and SM. Legend: T
// rows, V columns of which the first `vocab` are valid · W elements of a chunk · z a logit · c softcap.
#include <algorithm>
#include <limits>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cross_entropy.cuh"
#include "kernels/cuda/ops/cross_entropy_rows.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/finished_rows.cuh"

namespace speedrun {

namespace cross_entropy_cu {
namespace {

using loss::kLn2, loss::kLog2E, loss::Method, loss::RowChunks, loss::Targets, loss::Terms;

// Shared memory: partial sums, the targets' logits, the cache.
constexpr int64_t kTargetsOffset = kReduceSharedBytes, kCacheOffset = kTargetsOffset + Targets::kSharedBytes;

template <class Real, class Out>
struct Arguments {
    float* losses;
    loss::Gradients<Real, Out> dlogits;
    Rows<Real> logits;
    Targets targets;
    loss::Cap cap;
    float gradient_scale;
    bool has_gradient;
};

// The first chunks of a row: its terms, or its logits.
template <int W, class Real>
struct Cache {
    using Chunk = Packed<W, Real>;
    static constexpr int64_t kBytes = sizeof(Chunk);

    // Number of chunks that fit `bytes` of shared memory: all of them, else whole rounds of the block's threads, so that
    // each thread adds the same chunks in the same order on any GPU.
    static int64_t chunks_of(int64_t row_chunks, int64_t bytes, int threads) {
        const int64_t room = bytes / kBytes;
        return row_chunks <= room ? row_chunks : room / threads * threads;
    }
    static __device__ __forceinline__ void store(const RowChunks& chunks, int chunk, const Chunk& x) {
        if constexpr (W == 1) {
            shared_memory<Real>(kCacheOffset, chunks.cached)[chunk] = x.element;
        } else {
            using Word = typename Chunk::Word;
            store_word(&shared_memory<Word>(kCacheOffset, chunks.cached)[chunk], x.words[0]);
        }
    }
    static __device__ __forceinline__ Chunk load(const RowChunks& chunks, int chunk) {
        Chunk x;
        if constexpr (W == 1) {
            x.element = shared_memory<Real>(kCacheOffset, chunks.cached)[chunk];
        } else {
            using Word = typename Chunk::Word;
            x.words[0] = load_word(&shared_memory<Word>(kCacheOffset, chunks.cached)[chunk]);
        }
        return x;
    }
};

// Out: element type of dlogits.
template <class Real, class Out, int W, Method kMethod>
__device__ __forceinline__ void row_loss(const Arguments<Real, Out>& a, int64_t row,
                                         const RowChunks& chunks) {
    constexpr bool kOnline = kMethod == Method::online;
    using Chunk = Packed<W, Real>;
    const loss::Counted all = a.targets.template counted<W>(row, chunks);
    if (!all.valid || !all.counts) {
        if (threadIdx.x == 0) a.losses[row] = all.valid ? 0.0f : quiet_nan();
        if (a.has_gradient) a.dlogits.template clear<W>(row, 0, chunks);
        return;
    }
    const Real* const in = a.logits.at(row);
    const loss::Cap& cap = a.cap;
    const auto value_of = [&](int column) { return cap.value<W>(in, column, a.targets.vocab); };
    const loss::OwnTarget own = a.targets.own(row, value_of);
    const auto load = [&](int chunk) { return loss::load_chunk<W>(in, chunk); };
    // The chunk with valid columns and others, of thread 0.
    const int of_last = W == 1 || threadIdx.x != 0 ? 0 : loss::count_of<W>(chunks.full, a.targets.vocab);
    const auto load_last = [&] {
        return ::speedrun::Chunk<W>{of_last}.load_packed(in + int64_t{chunks.full} * W);
    };

    Terms terms{cap, -2 * kLog2E * cap.cap};
    loss::RowSum<kMethod> of_thread;
    loss::for_chunks(0, chunks.cached, load, [&](int chunk, const Chunk& logits) {
        const Vector<W> z = of_thread.add(logits, W, terms);
        Cache<W, Real>::store(chunks, chunk, kOnline ? logits : pack<Real>(z));
    });
    loss::for_chunks(chunks.cached, chunks.full, load,
                     [&](int, const Chunk& logits) { of_thread.add(logits, W, terms); });
    if (of_last > 0) of_thread.add(load_last(), of_last, terms);
    if constexpr (kOnline) {
        const float top = block_max(of_thread.maximum);
        of_thread.sum *= of_thread.rescaled(top);
        terms.exponent = top * kLog2E;
    }
    const float total = block_sum(of_thread.sum);

    if (warp_index() == 0) {  // has all targets
        // log(Σ exp(z − top)) + top − z. With the softcap as top, which no capped logit exceeds, z is 2c·g below it.
        const float z = kOnline && cap.cap > 0.0f ? cap.capped(own.value) : own.value;
        const float below = kOnline ? -kLn2 * fmaf(z, kLog2E, -terms.exponent) : 2.0f * cap.cap * own.value;
        const float sum_of_losses = warp_sum(own.weight == 0.0f ? 0.0f : own.weight * (logf(total) + below));
        if (threadIdx.x == 0) a.losses[row] = sum_of_losses;
    }
    if (!a.has_gradient) return;
    a.targets.keep(all, row, kTargetsOffset, value_of);
    const loss::GradientRow<Real, Out> out = a.dlogits.row(row);
    const loss::Factor<Real> factor((kOnline ? 1.0f : 4.0f) * (cap.slope * (a.gradient_scale * all.weight)) /
                                    total);
    // Gradients of a chunk from its terms as cached, or from its logits.
    const auto from_terms = [&](const Chunk& x) { return factor * x; };
    const auto from_logits = [&](const Chunk& x) {
        if constexpr (kOnline) {
            Vector<W> d = cap.template values<!kOnline>(x);
            terms.of_values(d);
#pragma unroll
            for (int i = 0; i < W; ++i) d[i] *= factor.value;
            return pack<Real>(d);
        } else {
            loss::RowSum<kMethod> unused;
            return from_terms(pack<Real>(unused.add(x, W, terms)));
        }
    };
    loss::for_chunks(
        0, chunks.cached, [&](int chunk) { return Cache<W, Real>::load(chunks, chunk); },
        [&](int chunk, const Chunk& x) {
            if constexpr (kOnline) {
                out.store(int64_t{chunk} * W, W, from_logits(x));
            } else {
                out.store(int64_t{chunk} * W, W, from_terms(x));
            }
        });
    loss::for_chunks(chunks.cached, chunks.full, load, [&](int chunk, const Chunk& logits) {
        out.store(int64_t{chunk} * W, W, from_logits(logits));
    });
    if (of_last > 0) {
        Vector<W> d = unpack(from_logits(load_last()));
#pragma unroll
        for (int i = 0; i < W; ++i) d[i] = i < of_last ? d[i] : 0.0f;
        out.store(int64_t{chunks.full} * W, loss::count_of<W>(chunks.full, a.dlogits.padded), pack<Real>(d));
    }
    const int num_valid = static_cast<int>((a.targets.vocab + W - 1) / W);
    a.dlogits.template clear<W>(row, num_valid, chunks);
    a.targets.store(all, row, out, kTargetsOffset, [&](float value, float weight) {
        Vector<1> term{{value}};
        float unused = 0.0f;
        if constexpr (kOnline) {
            terms.of_values(term);
        } else {
            terms.of_gaps(term, 1, unused);
        }
        return term[0] * factor.value - a.gradient_scale * weight * cap.slope_at(value);
    });
}

// finished: only for FP8 gradients.
template <class Real, class Out, int W, Method kMethod>
__global__ void __launch_bounds__(sizes::kLossThreads, 2)
    cross_entropy_kernel(Arguments<Real, Out> a, RowChunks chunks, FinishedRows finished) {
    wait_for_prior_kernels();
    const int64_t row = blockIdx.x;
    row_loss<Real, Out, W, kMethod>(a, row, chunks);
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
    const int64_t cols = a.logits.cols(), full = a.vocab_size / W, all = (cols + W - 1) / W;
    const Arguments<Real, Out> arguments{a.losses.as<float>(), loss::Gradients<Real, Out>(a),
                                         Rows<Real>(a.logits), Targets(a, 0, a.vocab_size),
                                         loss::Cap(a.softcap), a.gradient_scale,
                                         a.dlogits.present()};
    const int64_t room = std::min(sizes::kLossCacheBytes, shared_memory_of_half(site.stream) - kCacheOffset);
    const int threads = loss::block_threads(all);
    const int64_t cached = a.dlogits.present() ? Cache<W, Real>::chunks_of(full, room, threads) : 0;
    auto* const kernel = loss::method_of(a.softcap) == Method::bounded
                             ? cross_entropy_kernel<Real, Out, W, Method::bounded>
                             : cross_entropy_kernel<Real, Out, W, Method::online>;
    launch(kernel, grid_of(a.logits.rows(), 1), threads, kCacheOffset + cached * Cache<W, Real>::kBytes, site,
           arguments, RowChunks{static_cast<int>(cached), static_cast<int>(full), static_cast<int>(all)},
           finished);
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
