// Weighted sums of up to eight tensors, and their gradients in one pass. Forward: one thread per chunk of y.
// Backward: one warp per row. Groups of G lanes own a head each, so that a head's sums stay within its group.
// The warp of a row writes that row of every dsource, with any shifts.
// Roofline bound, real of b bytes, J terms: forward (J+1)·T·C·b; backward T·C·b for dy, for each dsource and
// for each source whose dc is requested (one more if a dsource accumulates). The adjacent row of a shifted
// term is read from L2. Legend: T rows, C columns, H heads · W elements of a chunk · J terms (a maximum for W
// = 1) · G lanes of a group.
#include <algorithm>

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/weighted_sum.cuh"

namespace speedrun {

namespace weighted_sum_cu {
namespace {

using namespace weighted;

// Blocks per multiprocessor for which registers are limited; 0: the compiler chooses. Its choice would spill
// with many terms, although one such block has enough loads in flight; on sm_120 even with a single term.
template <int J>
constexpr int kBlocks = J > 3             ? 1
                        : kSm120&& J == 1 ? 4
                                          : 0;

template <class Real, int W, int J>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocks<J>)
    weighted_sum_backward_kernel(BackwardArguments<Real, J> a) {
    wait_for_prior_kernels();
    float sums[J] = {};  // sums for all rows, or for all columns of the current row
    const int groups = sizes::kWarp / a.group, lane = lane_index() % a.group;
    const int64_t stride = int64_t{gridDim.x} * kRowsOfBlock;
    for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index(); row < a.rows; row += stride) {
        Place place{row, false, false};
        if (a.any_shift) {
            const unsigned position = static_cast<unsigned>(row) % a.sequence_length;
            place.first = position == 0;
            place.last = position == a.sequence_length - 1;
        }
#pragma unroll 1
        for (int begin = 0; begin < a.heads; begin += groups) {
            const int head = begin + lane_index() / a.group;
            float dots[J] = {};
            if (head < a.heads) {  // other lanes still take part in warp sums
                float weights[J] = {};
#pragma unroll
                for (int j = 0; j < J; ++j) {
                    if (J == kMaxTerms && j >= a.count) break;
                    const Term<Real>& term = a.terms[j];
                    weights[j] = 0.0f;
                    if ((term.carries || term.stores_source) && !(term.shifted && place.last))
                        weights[j] = term.coefficient.at(row + term.shifted, head);
                }
                for (int col = lane * W; col < a.head_size; col += a.group * W)
                    backward_chunk<Real, W>(a, place, int64_t{head} * a.head_size + col, Loaded<Real, W>(),
                                            weights, dots);
            }
#pragma unroll
            for (int j = 0; j < J; ++j) {
                if (J == kMaxTerms && j >= a.count) break;
                const Term<Real>& term = a.terms[j];
                if (!term.needs_coefficient) continue;
                if (term.coefficient.per == Per::head) {
                    const float dot = group_sum(dots[j], a.group);
                    if (lane == 0 && head < a.heads) put_coefficient(term, place, head, dot);
                } else {
                    sums[j] += dots[j];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (J == kMaxTerms && j >= a.count) break;
            const Term<Real>& term = a.terms[j];
            if (!term.needs_coefficient || term.coefficient.per != Per::row) continue;
            const float dot = warp_sum(sums[j]);
            if (lane_index() == 0) put_coefficient(term, place, 0, dot);
            sums[j] = 0.0f;
        }
    }
    store_partials(a, sums);
}

// Scalar coefficients: out (+)= factor·Σ over blocks of partial[j][block]; one block per term j.
struct Finish {
    float* out;  // null: not requested
    float factor;
    bool accumulate;
};
struct FinishArguments {
    Finish terms[kMaxTerms];
    const float* partial;
    int64_t blocks;
};
__global__ void __launch_bounds__(sizes::kReduceThreads) weighted_sum_finish_kernel(FinishArguments a) {
    wait_for_prior_kernels();
    Finish term{};
#pragma unroll
    for (unsigned j = 0; j < kMaxTerms; ++j)  // indexing the arguments would copy them to local memory
        if (blockIdx.x == j) term = a.terms[j];
    if (!term.out) return;
    const float* const partial = a.partial + blockIdx.x * a.blocks;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.blocks; i += sizes::kReduceThreads) sum += partial[i];
    sum = term.factor * block_sum(sum);
    if (threadIdx.x == 0) *term.out = term.accumulate ? *term.out + sum : sum;
}

// Calls body.template operator()<W, J>(). aligned: rows of all tensors are aligned.
template <class Real, class Body>
void with_sizes(bool aligned, int64_t head_size, int count, Body&& body) {
    constexpr int kWide = kVectorWidth<Real>;
    if (!aligned || head_size % kWide != 0) return body.template operator()<1, kMaxTerms>();
    with_terms(
        count, [&]<int J>() { body.template operator()<kWide, J>(); },
        std::make_integer_sequence<int, kMaxTerms>());
}

}  // namespace
}  // namespace weighted_sum_cu

void CudaOps::enqueue(const op::WeightedSumForward& a, Stream& stream) {
    using namespace weighted_sum_cu;
    const int count = count_terms(a.terms);
    const int64_t head_size = a.y.cols() / coefficient_heads(a.terms);
    cuda::with_real(a.y.dtype, [&]<class Real>() {
        with_sizes<Real>(aligned_sources<Real>(a), head_size, count, [&]<int W, int J>() {
            map<W>({a.y.rows(), a.y.cols()}, Sum<Real, J>(a), stream);
        });
    });
}

void CudaOps::enqueue(const op::WeightedSumBackward& a, Stream& stream) {
    using namespace weighted_sum_cu;
    const int count = count_terms(a.terms);
    const int64_t head_size = a.dy.cols() / coefficient_heads(a.terms);
    const int64_t blocks =
        std::clamp<int64_t>((a.dy.rows() + kRowsOfBlock - 1) / kRowsOfBlock, 1, sizes::kReduceMaxBlocks);
    auto* const partial = static_cast<float*>(workspace(stream, blocks * kMaxTerms * int64_t{sizeof(float)}));
    cuda::with_real(a.dy.dtype, [&]<class Real>() {
        bool aligned = aligned_rows(kVectorWidth<Real>, {a.dy});
        for (int j = 0; j < count; ++j) {
            const TermGradient& g = a.gradients[j];
            const Tensor read = g.dcoefficient.present() ? a.terms[j].source : Tensor();
            aligned = aligned && aligned_rows(kVectorWidth<Real>, {read, g.dsource});
        }
        with_sizes<Real>(aligned, head_size, count, [&]<int W, int J>() {
            auto arguments = backward_arguments<Real, J>(a);
            arguments.partial = partial;
            arguments.group = 1;
            while (arguments.group < sizes::kWarp && arguments.group * W < head_size) arguments.group *= 2;
            launch(weighted_sum_backward_kernel<Real, W, J>, static_cast<unsigned>(blocks),
                   sizes::kRowThreads, J * kRowsOfBlock * int64_t{sizeof(float)}, stream, arguments);
        });
    });
    finish_coefficients(a, partial, blocks, stream);
}

void CudaOps::finish_coefficients(const op::WeightedSumBackward& a, const float* partial, int64_t blocks,
                                  Stream& stream) {
    using namespace weighted_sum_cu;
    const int count = count_terms(a.terms);
    FinishArguments finish{};
    finish.partial = partial;
    finish.blocks = blocks;
    bool any = false;
    for (int j = 0; j < count; ++j) {
        const TermGradient& g = a.gradients[j];
        if (!g.dcoefficient.present() || g.dcoefficient.rank != 1) continue;
        finish.terms[j] = {g.dcoefficient.as<float>(), a.terms[j].factor, g.accumulate_coefficient};
        any = true;
    }
    if (any) {
        launch(weighted_sum_finish_kernel, static_cast<unsigned>(count), sizes::kReduceThreads,
               kReduceSharedBytes, stream, finish);
    }
}

}  // namespace speedrun
