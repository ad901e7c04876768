// Gradients of up to two sources that up to eight weighted sums share. One warp per row: a chunk of every dy is loaded
// once, and used for the gradients of all sources and coefficients.
// Roofline bound, L sums, M sources, real of b bytes: (L + 2M)·T·C·b, with accumulation (L + 3M)·T·C·b.
// Legend: T rows, C columns · W elements of a chunk.
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/weighted_sum.cuh"

namespace speedrun {

namespace shared_sources_cu {
namespace {

constexpr int kRowsOfBlock = sizes::kRowThreads / sizes::kWarp;

struct Coefficient {
    Rows<float> c, dc;  // null: the sum does not have the source
    float factor;
    bool accumulate;
};
template <class Real>
struct Source {
    Rows<Real> s, ds;
    bool accumulate;
};
template <class Real>
struct Arguments {
    Source<Real> sources[kMaxShared];
    Rows<Real> dy[kMaxTerms];
    Coefficient terms[kMaxTerms][kMaxShared];
    int64_t rows, cols;
    int num_sources, num_sums;
};

template <class Real, int W>
__global__ void __launch_bounds__(sizes::kRowThreads, 2) shared_sources_backward_kernel(Arguments<Real> a) {
    wait_for_prior_kernels();
    const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index();
    if (row >= a.rows) return;
    float weights[kMaxTerms][kMaxShared], dots[kMaxTerms][kMaxShared] = {};
#pragma unroll
    for (int l = 0; l < kMaxTerms; ++l) {
#pragma unroll
        for (int m = 0; m < kMaxShared; ++m) {
            const Coefficient& term = a.terms[l][m];
            weights[l][m] = 0.0f;
            if (term.c.data) weights[l][m] = term.factor * *term.c.at(row, 0);
        }
    }
    for (int64_t col = lane_index() * W; col < a.cols; col += sizes::kWarp * W) {
        Packed<W, Real> dy[kMaxTerms] = {}, s[kMaxShared] = {}, before[kMaxShared] = {};
#pragma unroll
        for (int l = 0; l < kMaxTerms; ++l)
            if (l < a.num_sums) dy[l] = load_packed<W>(a.dy[l].at(row, col));
#pragma unroll
        for (int m = 0; m < kMaxShared; ++m) {
            if (m < a.num_sources) s[m] = load_packed<W>(a.sources[m].s.at(row, col));
            if (a.sources[m].accumulate) before[m] = load_packed<W>(a.sources[m].ds.at(row, col));
        }
#pragma unroll
        for (int m = 0; m < kMaxShared; ++m) {
            if (m >= a.num_sources) break;
            const Vector<W> source = unpack(s[m]);
            Vector<W> sum = unpack(before[m]);
#pragma unroll
            for (int l = 0; l < kMaxTerms; ++l) {
                if (!a.terms[l][m].c.data) continue;
                const Vector<W> g = unpack(dy[l]);
#pragma unroll
                for (int i = 0; i < W; ++i) {
                    dots[l][m] = fmaf(g[i], source[i], dots[l][m]);
                    sum[i] += weights[l][m] * g[i];
                }
            }
            weighted::store_whole(a.sources[m].ds.at(row, col), pack<Real>(sum));
        }
    }
#pragma unroll
    for (int l = 0; l < kMaxTerms; ++l) {
#pragma unroll
        for (int m = 0; m < kMaxShared; ++m) {
            const Coefficient& term = a.terms[l][m];
            if (!term.c.data) continue;
            const float dot = term.factor * warp_sum(dots[l][m]);
            float* const to = term.dc.at(row, 0);
            if (lane_index() == 0) *to = term.accumulate ? *to + dot : dot;
        }
    }
}

template <class Real>
Arguments<Real> arguments_of(const op::SharedSourcesBackward& a) {
    Arguments<Real> result{};
    result.rows = a.sources[0].source.rows();
    result.cols = a.sources[0].source.cols();
    result.num_sources = count_sources(a.sources);
    result.num_sums = count_sums(a.sums);
    for (int m = 0; m < result.num_sources; ++m)
        result.sources[m] = {Rows<Real>(a.sources[m].source), Rows<Real>(a.sources[m].dsource),
                             a.sources[m].accumulate};
    for (int l = 0; l < result.num_sums; ++l) {
        result.dy[l] = Rows<Real>(a.sums[l].dy);
        for (int m = 0; m < result.num_sources; ++m) {
            const SharedTerm& term = a.sums[l].terms[m];
            result.terms[l][m] = {Rows<float>(term.coefficient), Rows<float>(term.dcoefficient), term.factor,
                                  term.accumulate};
        }
    }
    return result;
}

}  // namespace
}  // namespace shared_sources_cu

void CudaOps::enqueue(const op::SharedSourcesBackward& a, Stream& stream) {
    using namespace shared_sources_cu;
    const int64_t rows = a.sources[0].source.rows(), cols = a.sources[0].source.cols();
    if (rows == 0) return;
    cuda::with_real(a.sources[0].source.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        bool aligned = cols % kWide == 0;
        for (const SharedSource& shared : a.sources)
            aligned = aligned && aligned_rows(kWide, {shared.source, shared.dsource});
        for (const SharingSum& sum : a.sums) aligned = aligned && aligned_rows(kWide, {sum.dy});
        const auto launch_kernel = [&]<int W>() {
            launch(shared_sources_backward_kernel<Real, W>, grid_of(rows, kRowsOfBlock), sizes::kRowThreads,
                   0, stream, arguments_of<Real>(a));
        };
        aligned ? launch_kernel.template operator()<kWide>() : launch_kernel.template operator()<1>();
    });
}

}  // namespace speedrun
