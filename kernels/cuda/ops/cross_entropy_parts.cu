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
// transposed FP8 gradients (finished_rows.cuh), or 8·P·T without gradient. With softcap 3 special-function
// operations per element and pass. Legend: T rows, V columns of which the first `vocab` are valid, from the
// id `first` on · W elements of a chunk · z a logit · c softcap · P parts · L log Σ exp over all parts.
#include <limits>

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cross_entropy.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/finished_rows.cuh"

namespace speedrun {

namespace cross_entropy_parts_cu {
namespace {

using loss::block_threads, loss::Columns, loss::exp_approx, loss::Gradients, loss::GradientRow,
    loss::kTwiceLog2E, loss::Method;

// Targets of the rows, over all parts, and the columns of this part.
struct PartTargets {
    const int32_t* ids;
    int64_t stride;        // stride between targets of a row
    const float* weights;  // null: one target
    int count;
    int64_t first, vocab, whole_vocab;

    template <class Operation>
    explicit PartTargets(const Operation& a)
        : ids(a.targets.template as<int32_t>()),
          stride(a.weights.present() ? a.targets.row_stride : 0),
          weights(a.weights.present() ? a.weights.template as<float>() : nullptr),
          count(a.weights.present() ? static_cast<int>(a.weights.numel()) : 1),
          first(a.first),
          vocab(a.vocab_size),
          whole_vocab(a.whole_vocab_size) {}
    __device__ __forceinline__ int32_t id(int k, int64_t row) const { return ids[k * stride + row]; }
    __device__ __forceinline__ float weight(int k) const { return weights ? weights[k] : 1.0f; }
    // Column of an id; −1 if it is in another part.
    __device__ __forceinline__ int column(int32_t id) const {
        const int64_t at = id - first;
        return id >= 0 && at >= 0 && at < vocab ? static_cast<int>(at) : -1;
    }
};

template <class Real, int W, Method kMethod>
__global__ void __launch_bounds__(sizes::kLossThreads, 2)
    cross_entropy_part_kernel(float* part, Rows<Real> logits, PartTargets targets, int64_t chunks,
                              loss::Cap cap) {
    wait_for_kernels_before();
    constexpr bool kOnline = kMethod == Method::online;
    const int64_t row = blockIdx.x;
    const Real* const in = logits.at(row);
    const bool capped = !kOnline || cap.cap > 0.0f;
    // One thread per target, in one warp. Loaded before the row, to overlap with it.
    float target_logit = 0.0f, target_weight = 0.0f;
    if (const int k = static_cast<int>(threadIdx.x); k < targets.count) {
        const int column = targets.column(targets.id(k, row));
        if (column >= 0) {
            target_logit = to_float(in[column]);
            target_weight = targets.weight(k);
        }
    }

    loss::RowSum<kMethod> of_thread;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Chunk<W> elements = Columns<W>{targets.vocab}.chunk(chunk);
        Vector<W> z = elements.load(in + chunk * W);
        of_thread.add(z, elements, cap);
    }
    const float top = kOnline ? block_max(of_thread.maximum) : cap.cap;
    const float total =
        block_sum(kOnline ? of_thread.sum * exp_approx(of_thread.maximum - top) : of_thread.sum);
    if (warp_index() != 0) return;
    const float z = capped ? cap.cap * (1.0f - 2.0f * cap.gap(target_logit)) : target_logit;
    const float of_targets = warp_sum(target_weight * z);
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
    int64_t num_parts, rows, padded;
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
        sum += exp_approx(of[p * next] - highest);  // NaN propagates
        targets += of[p * next + 1];
    }
    return {logf(sum) + highest, targets};
}

// Weight of the valid targets of a row, and a bit for each target whose chunk this thread stores.
struct Counted {
    float weight = 0.0f;
    uint32_t stored_here = 0;
    bool valid = true, counts = false;
};
template <int W>
__device__ __forceinline__ Counted counted_targets(const PartTargets& targets, int64_t row) {
    Counted all;
    for (int k = 0; k < targets.count; ++k) {
        const int32_t id = targets.id(k, row);
        all.valid = all.valid && id >= -1 && id < targets.whole_vocab;
        if (id < 0) continue;
        all.counts = true;
        all.weight += targets.weight(k);
        const int column = targets.column(id);
        if (column >= 0 && threadIdx.x == static_cast<unsigned>(column) / W % blockDim.x)
            all.stored_here |= 1u << k;
    }
    return all;
}

template <class Real, class Out, int W, bool kCapped>
__device__ __forceinline__ void row_of_parts(const OfPartsArguments<Real, Out>& a, const PartTargets& targets,
                                             int64_t row, int64_t chunks) {
    const Counted all = counted_targets<W>(targets, row);
    const GradientRow<Real, Out> out = a.dlogits.row(row);
    if (!all.valid || !all.counts) {
        if (threadIdx.x == 0) a.losses[row] = all.valid ? 0.0f : quiet_nan();
        Vector<W> zero;
#pragma unroll
        for (int i = 0; i < W; ++i) zero[i] = 0.0f;
        for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x)
            out.store(chunk * W, Columns<W>{a.padded}.chunk(chunk), zero);
        return;
    }
    const Merged merged = merge(a, row);
    if (threadIdx.x == 0) a.losses[row] = all.weight * merged.log_sum - merged.targets;

    const loss::Cap cap = a.cap;
    const float exponent = -kTwiceLog2E * cap.cap;                         // −2c·log₂e
    const float origin = 0.5f * kTwiceLog2E * (cap.cap - merged.log_sum);  // (c − L)·log₂e
    const float factor =
        (kCapped ? 4.0f * cap.slope : 1.0f) * a.gradient_scale * all.weight;  // slope c/d·4g·(1 − g)
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        const Real* const in = a.logits.at(row, chunk * W);
        const Chunk<W> elements = Columns<W>{targets.vocab}.chunk(chunk);
        Vector<W> d = elements.load(in);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            if constexpr (kCapped) {
                const float g = cap.gap(d[i]);
                d[i] = ptx::exp2_approx(fmaf(exponent, g, origin)) * (g * (1.0f - g));
            } else {
                d[i] = exp_approx(d[i] - merged.log_sum);
            }
            d[i] = i < elements.count ? d[i] * factor : 0.0f;  // padding
        }
        for (int k = 0; k < targets.count && all.stored_here != 0; ++k) {
            if ((all.stored_here >> k & 1u) == 0) continue;
            const int column = targets.column(targets.id(k, row));
            if (column / W != chunk) continue;
            const float gap = kCapped ? cap.gap(to_float(in[column % W])) : 0.0f;
            const float slope = kCapped ? cap.slope * (4.0f * gap * (1.0f - gap)) : 1.0f;
            const float share = a.gradient_scale * targets.weight(k) * slope;
#pragma unroll
            for (int i = 0; i < W; ++i) d[i] -= i == column % W ? share : 0.0f;
        }
        // dlogits may alias logits: no other thread reads this chunk.
        out.store(chunk * W, Columns<W>{a.padded}.chunk(chunk), d);
    }
}

// Blocks per multiprocessor for which registers are limited. Shared memory is unused, and without a limit the
// compiler would keep many parts in registers, although there are few. On sm_100 the transposition of FP8
// rows spills with three.
template <class Out>
constexpr int kBlocks = kSm100&& std::is_same_v<Out, E5m2> ? 2 : 3;

// chunks: of a row of dlogits, 0 without gradient. finished: only for FP8 gradients.
template <class Real, class Out, int W, bool kCapped>
__global__ void __launch_bounds__(sizes::kLossThreads, kBlocks<Out>)
    cross_entropy_of_parts_kernel(OfPartsArguments<Real, Out> a, PartTargets targets, int64_t chunks,
                                  FinishedRows finished) {
    wait_for_kernels_before();
    const int64_t row = blockIdx.x;
    row_of_parts<Real, Out, W, kCapped>(a, targets, row, chunks);
    if constexpr (std::is_same_v<Out, E5m2>) finished.finish(row);
}

template <class Real, class Out, int W>
void launch_of_parts(const op::CrossEntropyOfParts& a, const FinishedRows& finished, LaunchSite site) {
    const int64_t rows = a.losses.numel(), cols = a.dlogits.present() ? a.dlogits.cols() : 0;
    const OfPartsArguments<Real, Out> arguments{.losses = a.losses.as<float>(),
                                                .dlogits = Gradients<Real, Out>(a),
                                                .logits = Rows<Real>(a.logits),
                                                .parts = a.parts.as<float>(),
                                                .num_parts = a.parts.rows() / rows,
                                                .rows = rows,
                                                .padded = cols,
                                                .cap = loss::Cap(a.softcap),
                                                .gradient_scale = a.gradient_scale};
    const int64_t chunks = (cols + W - 1) / W;
    auto* const kernel = a.softcap.present() ? cross_entropy_of_parts_kernel<Real, Out, W, true>
                                             : cross_entropy_of_parts_kernel<Real, Out, W, false>;
    launch(kernel, grid_of(rows, 1), block_threads(chunks),
           std::is_same_v<Out, E5m2> ? FinishedRows::kSharedBytes : 0, site, arguments, PartTargets(a),
           chunks, finished);
}

}  // namespace
}  // namespace cross_entropy_parts_cu

void CudaOps::enqueue(const op::CrossEntropyPart& a, Stream& stream) {
    using namespace cross_entropy_parts_cu;
    const int64_t rows = a.logits.rows();
    if (rows == 0) return;
    cuda::with_real(a.logits.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.logits}), [&]<int W>() {
            const int64_t chunks = (a.vocab_size + W - 1) / W;
            auto* const kernel = loss::method_of(a.softcap) == Method::bounded
                                     ? cross_entropy_part_kernel<Real, W, Method::bounded>
                                     : cross_entropy_part_kernel<Real, W, Method::online>;
            launch(kernel, grid_of(rows, 1), block_threads(chunks), kReduceSharedBytes, stream,
                   a.part.as<float>(), Rows<Real>(a.logits), PartTargets(a), chunks, loss::Cap(a.softcap));
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
