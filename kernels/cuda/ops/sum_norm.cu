// Norms of weighted sums, forward and backward in one pass over a row: one warp per row, as in norm.cuh; terms as in
// weighted_sum.cuh. Intermediate values are rounded, and sums ordered, as in the two separate operations: equal bits.
// Roofline bound, real of b bytes, J terms: forward (J + 2)·T·C·b. Backward 2·T·C·b for dy and s, and T·C·b
// for dresidual, for each dsource (twice if it accumulates) and for each source whose dc is requested. Legend: see
// norm.cuh.
#include <algorithm>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm.cuh"
#include "kernels/cuda/ops/weighted_sum.cuh"

namespace speedrun {

namespace sum_norm_cu {
namespace {

using norm::kRowsOfBlock, norm::kept_chunks;

constexpr int64_t kMostColumns = 1024;  // limit of rows kept in registers
// Numbers of terms, minus one, that have their own kernels.
using ForwardTerms = std::integer_sequence<int, 1, 2, 3, 4, 5>;
using BackwardTerms = std::integer_sequence<int, 1, 2, 3, 4>;

// `sum` receives s. The columns are whole chunks, at most the kept ones.
template <class Real, int W, int K, int J>
__global__ void __launch_bounds__(sizes::kRowThreads)
    sum_norm_forward_kernel(norm::ForwardArguments<Real> a, weighted::Sum<Real, J> sum) {
    wait_for_kernels_before();
    static_assert(K > 0);
    const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index();
    if (row >= a.rows) return;
    const auto form = [&](int64_t col, Chunk<W> chunk) {
        Vector<W> s{};
        if (chunk.count <= 0) return s;
        s = sum.template at<W>(row, col);
        norm::round_to<Real>(s);
        store_vector<W>(sum.y.at(row, col), s);
        return s;
    };
    norm::forward_row<Real, W, K>(a, row, form, [](int64_t, Chunk<W>) { return Vector<W>{}; });
}

// Minimum resident blocks per multiprocessor: two, or one with more terms, which would spill.
template <class Real, int J>
constexpr int kBlocks = J <= 3 && sizeof(Real) == 2 ? 2 : 1;

template <class Real, int W, int K, int J>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocks<Real, J>)
    sum_norm_backward_kernel(norm::BackwardArguments<Real> a, weighted::BackwardArguments<Real, J> sum) {
    wait_for_kernels_before();
    float sums[J] = {};  // coefficients with one value
    const int64_t stride = int64_t{gridDim.x} * kRowsOfBlock;
    for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index(); row < a.rows; row += stride) {
        const weighted::Place place{row, false, false};
        float weights[J] = {}, dots[J] = {};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (J == kMaxTerms && j >= sum.count) break;
            const weighted::Term<Real>& term = sum.terms[j];
            if (term.carries || term.stores_source) weights[j] = term.coefficient.at(row, 0);
        }
        norm::backward_row<Real, W, K, 0>(a, row, [&](int, int64_t col, Chunk<W> chunk, Vector<W>& ds) {
            if (chunk.count <= 0) return;
            norm::round_to<Real>(ds);
            weighted::backward_chunk<Real, W>(sum, place, col, weighted::Given<W>{ds}, weights, dots);
        });
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (J == kMaxTerms && j >= sum.count) break;
            const weighted::Term<Real>& term = sum.terms[j];
            if (!term.wants_coefficient) continue;
            if (term.coefficient.per == weighted::Per::row) {
                const float dot = warp_sum(dots[j]);
                if (lane_index() == 0) weighted::put_coefficient(term, place, 0, dot);
            } else {
                sums[j] += dots[j];
            }
        }
    }
    weighted::store_partials(sum, sums);
}

// Calls body.template operator()<W, K, J>().
template <class Real, class Body>
void with_sizes(bool aligned, int64_t cols, int count, Body&& body) {
    constexpr int kWide = kVectorWidth<Real>;
    if (!aligned || cols % kWide != 0) return body.template operator()<1, 0, kMaxTerms>();
    bool done = false;
    if (cols <= kMostColumns) {
        const auto few = [&]<int J>() {
            body.template operator()<kWide, kept_chunks<kWide>(kMostColumns), J>();
            done = true;
        };
        weighted::with_terms(count, few, BackwardTerms());
    }
    if (!done) body.template operator()<kWide, 0, kMaxTerms>();
}

}  // namespace
}  // namespace sum_norm_cu

void CudaOps::enqueue(const op::SumNormForward& a, Stream& stream) {
    using namespace sum_norm_cu;
    const op::WeightedSumForward first = a.first();
    const op::NormForward second = a.second();
    const LaunchSite site(stream);
    bool done = a.y.rows() == 0;
    cuda::with_real(a.y.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const int64_t cols = a.y.cols(), head_size = cols / coefficient_heads(a.terms);
        if (done || cols > kMostColumns || head_size % kWide != 0 ||
            !weighted::aligned_sources<Real>(first) || !aligned_rows(kWide, {a.y, a.gain, a.bias}))
            return;
        const auto launch_terms = [&]<int J>() {
            launch(sum_norm_forward_kernel<Real, kWide, kept_chunks<kWide>(kMostColumns), J>,
                   grid_of(a.y.rows(), kRowsOfBlock), sizes::kRowThreads, 0, site,
                   norm::forward_arguments<Real>(second, {}), weighted::Sum<Real, J>(first));
            done = true;
        };
        weighted::with_terms(count_terms(a.terms), launch_terms, ForwardTerms());
    });
    if (done) return;
    enqueue(first, stream);
    enqueue(second, stream);
}

void CudaOps::enqueue(const op::SumNormBackward& a, Stream& stream) {
    using namespace sum_norm_cu;
    norm_parameters(a.dgain, a.dbias, a.dy, a.s, a.mean, a.rstd, a.accumulate, a.kind,
                    stream);  // before a dsource, which may alias dy
    const int64_t blocks =
        std::clamp<int64_t>((a.s.rows() + kRowsOfBlock - 1) / kRowsOfBlock, 1, sizes::kReduceMaxBlocks);
    auto* const partial = static_cast<float*>(workspace(stream, blocks * kMaxTerms * int64_t{sizeof(float)}));
    const op::WeightedSumBackward second = a.second(a.dy);
    const LaunchSite site(stream);
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        bool aligned = aligned_rows(kVectorWidth<Real>, {a.dy, a.s, a.dresidual, a.gain});
        for (int j = 0; j < count_terms(a.terms); ++j) {
            const TermGradient& g = a.gradients[j];
            const Tensor read = g.dcoefficient.present() ? a.terms[j].source : Tensor();
            aligned = aligned && aligned_rows(kVectorWidth<Real>, {read, g.dsource});
        }
        with_sizes<Real>(aligned, a.s.cols(), count_terms(a.terms), [&]<int W, int K, int J>() {
            auto terms = weighted::backward_arguments<Real, J>(second);
            terms.partial = partial;
            launch(sum_norm_backward_kernel<Real, W, K, J>, static_cast<unsigned>(blocks), sizes::kRowThreads,
                   J * kRowsOfBlock * int64_t{sizeof(float)}, site, norm::backward_arguments<Real>(a, {}),
                   terms);
        });
    });
    finish_coefficients(second, partial, blocks, stream);
}

}  // namespace speedrun
