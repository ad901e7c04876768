// Cross-entropy of a vocabulary split into parts. The first kernel reduces each row within a part. The second
// merges the results of all parts and computes losses and the part's gradient. One block per row in both;
// exponentials as in cross_entropy.cu, which explains the softcap.
//
// The first kernel reads a row once. With a low softcap c, which no capped logit exceeds, c replaces the
// maximum; otherwise sums are rescaled when the maximum rises. In the second kernel every thread merges the
// parts' results itself, in the order of the parts: a few words, without a barrier. As L is known, a gradient
// needs only its own logit: one pass. All parts compute the same losses from the same values, to the bit.
//
// Roofline bound, real of b bytes: T·V·b, then 2·T·V·b (logits read, dlogits written), or T·V·(b + 2) with
// transposed FP8 gradients (finished_rows.cuh), or 8·P·T without gradient. With softcap 2.25 special
// functions per element and pass. Legend: T rows, V columns of which the first `vocab` are valid, from the
// id `first` on · W elements of a chunk · z a logit · c softcap · P parts · L log Σ exp over all parts.
#include <limits>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cross_entropy.cuh"
#include "kernels/cuda/ops/cross_entropy_rows.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/finished_rows.cuh"

namespace speedrun {

namespace cross_entropy_parts_cu {
namespace {

using loss::GradientRow, loss::Gradients, loss::kLog2E, loss::Method, loss::RowChunks, loss::Targets,
    loss::Terms;

template <class Real, int W, Method kMethod>
__global__ void __launch_bounds__(sizes::kLossThreads, 2)
    cross_entropy_part_kernel(float* part, Rows<Real> logits, Targets targets, int full, loss::Cap cap) {
    wait_for_prior_kernels();
    constexpr bool kOnline = kMethod == Method::online;
    using Logits = Packed<W, Real>;
    const int64_t row = blockIdx.x;
    const Real* const in = logits.at(row);
    // Loaded before the row, to overlap with it.
    const loss::OwnTarget own =
        targets.own(row, [&](int column) { return cap.value<W>(in, column, targets.vocab); });

    const Terms terms{cap, -2 * kLog2E * cap.cap};
    loss::RowSum<kMethod> of_thread;
    loss::for_chunks(
        0, full, [&](int chunk) { return loss::load_chunk<W>(in, chunk); },
        [&](int, const Logits& chunk) { of_thread.add(chunk, W, terms); });
    if (const int last = loss::count_of<W>(full, targets.vocab); W > 1 && last > 0 && threadIdx.x == 0)
        of_thread.add(Chunk<W>{last}.load_packed(in + int64_t{full} * W), last, terms);
    const float top = kOnline ? block_max(of_thread.maximum) : cap.cap;
    const float total = block_sum(kOnline ? of_thread.sum * of_thread.rescaled(top) : of_thread.sum);
    if (warp_index() != 0) return;
    const float z = cap.cap > 0.0f ? cap.capped(own.value) : own.value;
    const float of_targets = warp_sum(own.weight * z);
    if (threadIdx.x != 0) return;
    part[2 * row] = logf(total) + top;  // −∞ for a part without columns
    part[2 * row + 1] = of_targets;
}

template <class Real, class Out>
struct OfPartsArguments {
    float* losses;
    Gradients<Real, Out> dlogits;
    Rows<Real> logits;
    const float* parts;
    int64_t num_parts, rows;
    loss::Cap cap;
    float gradient_scale;
};

// Merged results of all parts: L, and the weighted sum of the targets' logits.
struct Merged {
    float log_sum, targets;
};
template <class Arguments>
__device__ __forceinline__ Merged merge(const Arguments& a, int64_t row) {
    const float* const of = a.parts + 2 * row;
    const int64_t next = 2 * a.rows;  // stride between parts
    float highest = -std::numeric_limits<float>::infinity(), sum = 0.0f, targets = 0.0f;
    for (int64_t p = 0; p < a.num_parts; ++p) highest = fmaxf(highest, of[p * next]);
    for (int64_t p = 0; p < a.num_parts; ++p) {
        sum += ptx::exp2_approx((of[p * next] - highest) * kLog2E);  // NaN propagates
        targets += of[p * next + 1];
    }
    return {logf(sum) + highest, targets};
}

// Shared memory: of FinishedRows, the targets' logits.
constexpr int64_t kTargetsOffset = FinishedRows::kSharedBytes,
                  kSharedBytes = kTargetsOffset + Targets::kSharedBytes;

template <class Real, class Out, int W, bool kCapped>
__device__ __forceinline__ void row_of_parts(const OfPartsArguments<Real, Out>& a, const Targets& targets,
                                             int64_t row, const RowChunks& chunks) {
    using Logits = Packed<W, Real>;
    const loss::Counted all = targets.counted<W>(row, chunks);
    if (!all.valid || !all.counts) {
        if (threadIdx.x == 0) a.losses[row] = all.valid ? 0.0f : quiet_nan();
        a.dlogits.template clear<W>(row, 0, chunks);
        return;
    }
    const Merged merged = merge(a, row);
    if (threadIdx.x == 0) a.losses[row] = all.weight * merged.log_sum - merged.targets;
    if (chunks.all == 0) return;

    const loss::Cap& cap = a.cap;
    const Real* const in = a.logits.at(row);
    targets.keep(all, row, kTargetsOffset,
                 [&](int column) { return cap.value<W>(in, column, targets.vocab); });
    const GradientRow<Real, Out> out = a.dlogits.row(row);
    const float log_sum = merged.log_sum * kLog2E;
    const float exponent = -2 * kLog2E * cap.cap,
                origin = kLog2E * (cap.cap - merged.log_sum);  // (c − L)·log₂e
    const float factor =
        (kCapped ? 4.0f * cap.slope : 1.0f) * a.gradient_scale * all.weight;  // slope c/d·4g·(1 − g)
    // kCapped: d becomes the gradients of logits with these g, otherwise of the logits d.
    const auto gradients = [&]<int kCount>(Vector<kCount>& d) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if constexpr (kCapped) {
                const float scaled = factor * d[i];
                d[i] = ptx::exp2_approx(fmaf(exponent, d[i], origin)) * fmaf(-scaled, d[i], scaled);
            } else {
                d[i] = ptx::exp2_approx(fmaf(d[i], kLog2E, -log_sum)) * factor;
            }
        }
    };
    const auto of_chunk = [&](const Logits& logits) {
        Vector<W> d = cap.template values<kCapped>(logits);
        gradients(d);
        return d;
    };
    // dlogits may alias logits: no other thread reads these chunks.
    loss::for_chunks(
        0, chunks.full, [&](int chunk) { return loss::load_chunk<W>(in, chunk); },
        [&](int chunk, const Logits& logits) {
            out.store(int64_t{chunk} * W, W, pack<Real>(of_chunk(logits)));
        });
    if (const int last = loss::count_of<W>(chunks.full, targets.vocab);
        W > 1 && last > 0 && threadIdx.x == 0) {
        Vector<W> d = of_chunk(Chunk<W>{last}.load_packed(in + int64_t{chunks.full} * W));
#pragma unroll
        for (int i = 0; i < W; ++i) d[i] = i < last ? d[i] : 0.0f;
        out.store(int64_t{chunks.full} * W, loss::count_of<W>(chunks.full, a.dlogits.padded), pack<Real>(d));
    }
    a.dlogits.template clear<W>(row, static_cast<int>((targets.vocab + W - 1) / W), chunks);
    targets.store(all, row, out, kTargetsOffset, [&](float value, float weight) {
        Vector<1> d{{value}};
        gradients(d);
        return d[0] - a.gradient_scale * weight * cap.slope_at(value);
    });
}

// chunks.all: 0 without gradient. finished: only for FP8 gradients.
template <class Real, class Out, int W, bool kCapped>
__global__ void __launch_bounds__(sizes::kLossThreads, 2)
    cross_entropy_of_parts_kernel(OfPartsArguments<Real, Out> a, Targets targets, RowChunks chunks,
                                  FinishedRows finished) {
    wait_for_prior_kernels();
    const int64_t row = blockIdx.x;
    row_of_parts<Real, Out, W, kCapped>(a, targets, row, chunks);
    if constexpr (std::is_same_v<Out, E5m2>) finished.finish(row);
}

template <class Real, class Out, int W>
void launch_of_parts(const op::CrossEntropyOfParts& a, const FinishedRows& finished, LaunchSite site) {
    const int64_t rows = a.losses.numel();
    const Gradients<Real, Out> dlogits(a);
    const OfPartsArguments<Real, Out> arguments{.losses = a.losses.as<float>(),
                                                .dlogits = dlogits,
                                                .logits = Rows<Real>(a.logits),
                                                .parts = a.parts.as<float>(),
                                                .num_parts = a.parts.rows() / rows,
                                                .rows = rows,
                                                .cap = loss::Cap(a.softcap),
                                                .gradient_scale = a.gradient_scale};
    const int all = static_cast<int>((dlogits.padded + W - 1) / W);
    const int full = all == 0 ? 0 : static_cast<int>(a.vocab_size / W);
    auto* const kernel = a.softcap.present() ? cross_entropy_of_parts_kernel<Real, Out, W, true>
                                             : cross_entropy_of_parts_kernel<Real, Out, W, false>;
    launch(kernel, grid_of(rows, 1), loss::block_threads(all), kSharedBytes, site, arguments,
           Targets(a, a.first, a.whole_vocab_size), RowChunks{0, full, all}, finished);
}

}  // namespace
}  // namespace cross_entropy_parts_cu

void CudaOps::enqueue(const op::CrossEntropyPart& a, Stream& stream) {
    using namespace cross_entropy_parts_cu;
    const int64_t rows = a.logits.rows();
    if (rows == 0) return;
    cuda::with_real(a.logits.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.logits}), [&]<int W>() {
            const auto full = static_cast<int>(a.vocab_size / W);
            auto* const kernel = loss::method_of(a.softcap) == Method::bounded
                                     ? cross_entropy_part_kernel<Real, W, Method::bounded>
                                     : cross_entropy_part_kernel<Real, W, Method::online>;
            launch(kernel, grid_of(rows, 1), loss::block_threads(full), kReduceSharedBytes, stream,
                   a.part.as<float>(), Rows<Real>(a.logits), Targets(a, a.first, a.whole_vocab_size), full,
                   loss::Cap(a.softcap));
        });
    });
}

void CudaOps::enqueue(const op::CrossEntropyOfParts& a, Stream& stream) {
    using namespace cross_entropy_parts_cu;
    if (a.losses.numel() == 0) return;
    const LaunchSite site(stream);
    const FinishedRows finished = finished_rows(
        a, [&](int64_t bytes) { return workspace(stream, bytes); }, site);
    cuda::with_real(a.dlogits.present() ? a.logits.dtype : DType::f32, [&]<class Real>() {
        loss::with_gradients<Real>(
            a, [&]<class Out, int W>() { launch_of_parts<Real, Out, W>(a, finished, site); });
    });
}

}  // namespace speedrun
