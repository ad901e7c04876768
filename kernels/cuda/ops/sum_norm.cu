// Norms of weighted sums, forward and backward in one pass over a row: one warp per row, as in norm.cuh; terms as in
// weighted_sum.cuh. Intermediate values are rounded, and sums ordered, as in the two separate operations: equal bits.
// Roofline bound, real of b bytes, J terms: forward (J + 2)·T·C·b, with delta (J + 4)·T·C·b. Backward 2·T·C·b for dy
// and s, and T·C·b for dresidual, for each dsource (twice if it accumulates) and for each source with a requested dc.
// Legend: see norm.cuh.
#include <algorithm>

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm.cuh"
#include "kernels/cuda/ops/weighted_sum.cuh"

namespace speedrun {

namespace sum_norm_cu {
namespace {

using norm::kRowsOfBlock, norm::kept_chunks;

// Numbers of terms, minus one, that have their own kernels.
using ForwardTerms = std::integer_sequence<int, 1, 2, 3, 4, 5>;
using BackwardTerms = std::integer_sequence<int, 1, 2, 3, 4>;

// True if all loads of a row are in flight before the first use. More chunks and terms would spill.
template <class Real, int K, int J>
constexpr bool kForwardAhead = sizeof(Real) == 2 && K <= 4 && J <= 3;

// Minimum resident blocks per multiprocessor; 0: the compiler chooses. Its choice would spill six terms, and on sm_80 two terms of
// f32 rows of 1024.
template <class Real, int K, int J>
constexpr int kForwardBlocks = sizeof(Real) == 4  ? (J > 5 || (J == 2 && K == 8) ? 2 : 0)
                               : J > 5            ? 2
                               : K > 4            ? 0
                               : J == 3 && K == 4 ? 2
                               : J >= 3 || K == 4 ? 3
                                                  : 4;

// sum.y receives s, with two terms and delta sum.sources[0] receives x + delta. The columns are whole chunks, at most
// the kept ones.
template <class Real, int W, int K, int J>
__global__ void __launch_bounds__(sizes::kRowThreads, kForwardBlocks<Real, K, J>)
    sum_norm_forward_kernel(norm::ForwardArguments<Real> a, weighted::Sum<Real, J> sum) {
    wait_for_prior_kernels();
    static_assert(K > 0);
    const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index();
    if (row >= a.rows) return;
    constexpr bool kAhead = kForwardAhead<Real, K, J>;
    using Loaded = typename weighted::Sum<Real, J>::template Loaded<W>;
    // x + delta is the first source.
    const bool enters = J == 2 && a.has_delta;
    typename weighted::Sum<Real, J>::Row of = sum.row_of(row);
    if (enters) of.sources[0] = a.x.at(row);
    Loaded loaded[kAhead ? K : 1];
    norm::KeptRow<Real, W, kAhead && J == 2 && K <= 3 ? K : 0> delta;
    if constexpr (kAhead) {
        norm::for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
            if (chunk.count > 0) loaded[k] = sum.template load<W>(of, col);
        });
        if (enters) delta.fetch(a.delta, row, a.cols);
    }
    const auto form = [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> s{};
        if (chunk.count <= 0) return s;
        Loaded terms = kAhead ? loaded[kAhead ? k : 0] : sum.template load<W>(of, col);
        if (enters) {
            Vector<W> x = unpack(terms.of[0]);
            const Vector<W> added = delta.at(k, a.delta, row, col, chunk);
#pragma unroll
            for (int i = 0; i < W; ++i) x[i] += added[i];
            terms.of[0] = pack<Real>(x);
            weighted::store_whole<W>(sum.sources[0].at(row, col), terms.of[0]);
        }
        s = sum.template at<W>(of, col, terms);
        norm::round_to<Real>(s);
        store_vector<W>(sum.y.at(row, col), s);
        return s;
    };
    norm::forward_row<Real, W, K>(a, row, form, [](int64_t, Chunk<W>) { return Vector<W>{}; });
}

// Chunks of dresidual and of the sources loaded before the row sums; more terms would spill.
template <class Real, int K, int J>
constexpr int kAhead = J == 2 ? norm::kAhead<Real, K> : 0;
// Minimum resident blocks per multiprocessor: two, or one where registers would spill, as on sm_100 and sm_120.
template <class Real, int K, int J>
constexpr int kBlocks = J <= 3 && sizeof(Real) == 2 && kAhead<Real, K, J> <= 3 && kArchitecture < 1000 ? 2
                                                                                                       : 1;

template <class Real, int W, int K, int J>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocks<Real, K, J>)
    sum_norm_backward_kernel(norm::BackwardArguments<Real> a, weighted::BackwardArguments<Real, J> sum) {
    wait_for_prior_kernels();
    constexpr int kEarly = kAhead<Real, K, J>;
    float sums[J] = {};  // coefficients with one value
    const int64_t stride = int64_t{gridDim.x} * kRowsOfBlock;
    for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index(); row < a.rows; row += stride) {
        const weighted::Place place{row, false, false};
        norm::KeptRow<Real, W, kEarly> kept[J];
        float weights[J] = {}, dots[J] = {};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (J == kMaxTerms && j >= sum.count) break;
            const weighted::Term<Real>& term = sum.terms[j];
            if (term.needs_coefficient) kept[j].fetch(term.source, row, a.cols);
            if (term.carries || term.stores_source) weights[j] = term.coefficient.at(row, 0);
        }
        norm::backward_row<Real, W, K, kEarly>(
            a, row, [&](int k, int64_t col, Chunk<W> chunk, Vector<W>& ds) {
                if (chunk.count <= 0) return;
                const Packed<W, Real> rounded = pack<Real>(ds);
                if (a.ds.data) weighted::store_whole(a.ds.at(row, col), rounded);
                ds = unpack(rounded);
                const auto source = [&](int j, const Real* p) {
                    if constexpr (kEarly > 0) return kept[j].kept[k];
                    return load_packed<W>(p);
                };
                weighted::backward_chunk<Real, W>(
                    sum, place, col, weighted::Given<W, decltype(source)>{ds, source}, weights, dots);
            });
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (J == kMaxTerms && j >= sum.count) break;
            const weighted::Term<Real>& term = sum.terms[j];
            if (!term.needs_coefficient) continue;
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

// Calls body.template operator()<K, J>() if rows of this length have kernels for this number of terms, and returns true
// if so. Two terms, a mix of the stream with the first embedding, stand before most norms: they have kernels for more
// lengths, with K = 0 for those above kLongest. Rows of 768 have kernels for three terms, too.
template <int W, int64_t kLongest, class Body, class Terms>
bool with_kept_rows(int64_t cols, int count, Body&& body, Terms terms) {
    bool done = false;
    const auto run = [&]<int64_t kColumns, int J>() {
        body.template operator()<kept_chunks<W>(kColumns), J>();
        done = true;
    };
    const auto select = [&]<int J>() {
        if constexpr (J <= 3) {
            if (cols <= 768) return run.template operator()<768, J>();
        }
        if constexpr (J == 2) {
            if (cols > 1024) {
                if (kLongest == 0 || cols <= kLongest) run.template operator()<kLongest, J>();
                return;
            }
        }
        if (cols <= 1024) run.template operator()<1024, J>();
    };
    weighted::with_terms(count, select, terms);
    return done;
}

}  // namespace
}  // namespace sum_norm_cu

void CudaOps::enqueue(const op::SumNormForward& a, Stream& stream) {
    using namespace sum_norm_cu;
    const op::WeightedSumForward first = a.first();
    const op::NormForward second = a.second();
    const LaunchSite site(stream);
    const int count = count_terms(a.terms);
    if (a.y.rows() == 0) return enqueue(second, stream);
    bool done = false;
    cuda::with_real(a.y.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const int64_t cols = a.y.cols(), head_size = cols / coefficient_heads(a.terms);
        if (head_size % kWide != 0 || (a.delta.present() && count != 2) ||
            !weighted::aligned_sources<Real>(first) ||
            !aligned_rows(kWide, {a.y, a.x, a.delta, a.gain, a.bias}))
            return;
        auto arguments = norm::forward_arguments<Real>(second);
        if (a.delta.present()) {
            arguments.x = Rows<Real>(a.x);
            arguments.delta = Rows<Real>(a.delta);
            arguments.has_delta = true;
        }
        const auto launch_kernel = [&]<int K, int J>() {
            if (a.amax.present()) enqueue(op::Fill{.x = a.amax, .value = 0}, stream);
            launch(sum_norm_forward_kernel<Real, kWide, K, J>, grid_of(a.y.rows(), kRowsOfBlock),
                   sizes::kRowThreads, 0, site, arguments, weighted::Sum<Real, J>(first));
        };
        done = with_kept_rows<kWide, 2048>(cols, count, launch_kernel, ForwardTerms());
    });
    if (done) return;
    if (a.delta.present()) enqueue(a.before(), stream);
    enqueue(first, stream);
    enqueue(second, stream);
}

void CudaOps::enqueue(const op::SumNormBackward& a, Stream& stream) {
    using namespace sum_norm_cu;
    const op::NormBackward first = a.first(a.dsum);
    norm_parameters(first, stream);  // before a dsource, which may alias dy
    const int64_t blocks =
        std::clamp<int64_t>((a.s.rows() + kRowsOfBlock - 1) / kRowsOfBlock, 1, sizes::kReduceMaxBlocks);
    auto* const partial = static_cast<float*>(workspace(stream, blocks * kMaxTerms * int64_t{sizeof(float)}));
    const op::WeightedSumBackward second = a.second(a.dy);
    const LaunchSite site(stream);
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        bool aligned = aligned_rows(kVectorWidth<Real>, {a.dy, a.s, a.dresidual, a.gain, a.dsum});
        for (int j = 0; j < count_terms(a.terms); ++j) {
            const TermGradient& g = a.gradients[j];
            const Tensor read = g.dcoefficient.present() ? a.terms[j].source : Tensor();
            aligned = aligned && aligned_rows(kVectorWidth<Real>, {read, g.dsource});
        }
        const auto launch_kernel = [&]<int W, int K, int J>() {
            auto terms = weighted::backward_arguments<Real, J>(second);
            terms.partial = partial;
            launch(sum_norm_backward_kernel<Real, W, K, J>, static_cast<unsigned>(blocks), sizes::kRowThreads,
                   J * kRowsOfBlock * int64_t{sizeof(float)}, site, norm::backward_arguments<Real>(first),
                   terms);
        };
        constexpr int kWide = kVectorWidth<Real>;
        const int64_t cols = a.s.cols();
        if (!aligned || cols % kWide != 0) return launch_kernel.template operator()<1, 0, kMaxTerms>();
        const auto launch_wide = [&]<int K, int J>() { launch_kernel.template operator()<kWide, K, J>(); };
        if (!with_kept_rows<kWide, 0>(cols, count_terms(a.terms), launch_wide, BackwardTerms()))
            launch_wide.template operator()<0, kMaxTerms>();
    });
    finish_coefficients(second, partial, blocks, stream);
}

}  // namespace speedrun
