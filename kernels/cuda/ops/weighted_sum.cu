// Weighted sums of up to eight tensors, and their gradients in one pass. Forward: a thread per chunk of y.
// Backward: a warp per row, groups of G lanes owning a head each, so that a head's sums stay within its group;
// a row's thread owns that row of every dsource, whatever the shifts. Floor, real of b bytes, J terms: forward
// (J+1)·T·C·b; backward T·C·b for dy, for each dsource and for each source of which dc is wanted (one more
// where a dsource accumulates). The row that a shift reads as well comes from the second level of cache.
// Legend: T rows, C columns, H heads · W elements of a chunk · J terms (at most, for W = 1) · G lanes of a group.
#include <algorithm>
#include <utility>

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

// What a coefficient is given for.
enum class Per : uint8_t { all, row, head };

struct Coefficient {
    const float* data;  // null: 1
    int64_t stride;
    float factor;
    Per per;

    __device__ __forceinline__ float at(int64_t row, int64_t head) const {
        if (!data) return factor;
        return factor * data[row * stride + (per == Per::head ? head : 0)];
    }
};

template <class Real, int J>
struct Sum {
    Rows<Real> y, sources[J];
    Coefficient coefficients[J];
    bool shifted[J];
    int count;  // J, unless W is 1
    unsigned head_size, sequence_length;
    bool any_head, any_shift;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W>) const {
        const int64_t head = any_head ? static_cast<unsigned>(col) / head_size : 0;
        const bool first = any_shift && static_cast<unsigned>(row) % sequence_length == 0;
        Packed<W, Real> loaded[J] = {};
        float weights[J] = {};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (W == 1 && j >= count) break;
            loaded[j] = load_packed<W>(sources[j].at(shifted[j] && !first ? row - 1 : row, col));
            weights[j] = coefficients[j].at(row, head);
        }
        Vector<W> sum{};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (W == 1 && j >= count) break;
            if (shifted[j] && first) continue;
            const Vector<W> s = unpack(loaded[j]);
#pragma unroll
            for (int i = 0; i < W; ++i) sum[i] += weights[j] * s[i];
        }
        store_vector<W>(y.at(row, col), sum);
    }
};

// Two neighbouring terms with one dsource: the first carries, the second stores the sum of both.
template <class Real>
struct Term {
    Rows<Real> source, dsource;
    Coefficient coefficient;
    Rows<float> dcoefficient;
    bool shifted, carries, stores_source, accumulate_source, wants_coefficient, accumulate_coefficient;
};

template <class Real, int J>
struct BackwardArguments {
    Rows<Real> dy;
    Term<Real> terms[J];
    float* partial;  // [J][blocks]: sums of coefficients that are one number
    int64_t rows;
    int count, heads, head_size, group;  // count: J, unless W is 1
    unsigned sequence_length;
    bool any_shift;
};

constexpr int kRowsOfBlock = sizes::kRowThreads / sizes::kWarp;

// A row and where it lies in its sequence.
struct Place {
    int64_t row;
    bool first, last;
};

// dc of `to` (+)= value, or, for the first row of a sequence of a shifted term, 0 too.
template <class Real>
__device__ __forceinline__ void put_coefficient(const Term<Real>& term, Place place, int64_t head,
                                                float dot) {
    const auto put = [&](int64_t row, float value) {
        float* const to = term.dcoefficient.at(row, head);
        *to = term.accumulate_coefficient ? *to + value : value;
    };
    if (term.shifted && place.first) put(place.row, 0.0f);
    if (!term.shifted || !place.last) put(place.row + term.shifted, term.coefficient.factor * dot);
}

// Stores like store_vector, whose word the compiler would store in four parts here.
template <int W, class Real>
__device__ __forceinline__ void store_whole(Real* p, const Packed<W, Real>& x) {
    if constexpr (W == 1) {
        *p = x.element;
    } else {
        static_assert(sizeof(x) == sizeof(uint4));
        expect_aligned<16>(p);
        ptx::store_global(reinterpret_cast<uint4*>(p), x.words[0]);
    }
}

// A chunk of one row and head; dots[j] (+)= its share of Σ dy·s.
template <class Real, int W, int J>
__device__ __forceinline__ void backward_chunk(const BackwardArguments<Real, J>& a, Place place, int64_t col,
                                               const float (&weights)[J], float (&dots)[J]) {
    const Packed<W, Real> loaded = load_packed<W>(a.dy.at(place.row, col));
    Packed<W, Real> loaded_after = {}, sources[J] = {}, before[J] = {};
    if (a.any_shift && !place.last) loaded_after = load_packed<W>(a.dy.at(place.row + 1, col));
#pragma unroll
    for (int j = 0; j < J; ++j) {
        if (W == 1 && j >= a.count) break;
        const Term<Real>& term = a.terms[j];
        if (term.wants_coefficient && !(term.shifted && place.last))
            sources[j] = load_packed<W>(term.source.at(place.row, col));
        if (term.accumulate_source) before[j] = load_packed<W>(term.dsource.at(place.row, col));
    }
    // Without branches but around the stores: what is not wanted was not loaded, and is 0.
    const Vector<W> here = unpack(loaded), after = unpack(loaded_after);
    Vector<W> sum{};
#pragma unroll
    for (int j = 0; j < J; ++j) {
        if (W == 1 && j >= a.count) break;
        const Term<Real>& term = a.terms[j];
        const Vector<W> s = unpack(sources[j]), old = unpack(before[j]);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float g = term.shifted ? after[i] : here[i];
            dots[j] = fmaf(g, s[i], dots[j]);
            sum[i] = sum[i] + weights[j] * g + old[i];
        }
        if (term.stores_source) store_whole(term.dsource.at(place.row, col), pack<Real>(sum));
#pragma unroll
        for (int i = 0; i < W; ++i) sum[i] = term.carries ? sum[i] : 0.0f;
    }
}

// Blocks that registers are to allow on a multiprocessor; 0: the compiler chooses. It chooses so many that many
// terms spill, though one block of these has loads enough in flight, and on sm_120 a single term.
template <int J>
constexpr int kBlocks = J > 3             ? 1
                        : kSm120&& J == 1 ? 4
                                          : 0;

template <class Real, int W, int J>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocks<J>)
    weighted_sum_backward_kernel(BackwardArguments<Real, J> a) {
    float sums[J] = {};  // of coefficients for all rows, or for all columns of the present row
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
            if (head < a.heads) {  // the others still take part in the sums of their warp
                float weights[J] = {};
#pragma unroll
                for (int j = 0; j < J; ++j) {
                    if (W == 1 && j >= a.count) break;
                    const Term<Real>& term = a.terms[j];
                    weights[j] = 0.0f;
                    if ((term.carries || term.stores_source) && !(term.shifted && place.last))
                        weights[j] = term.coefficient.at(row + term.shifted, head);
                }
                for (int col = lane * W; col < a.head_size; col += a.group * W)
                    backward_chunk<Real, W>(a, place, int64_t{head} * a.head_size + col, weights, dots);
            }
#pragma unroll
            for (int j = 0; j < J; ++j) {
                if (W == 1 && j >= a.count) break;
                const Term<Real>& term = a.terms[j];
                if (!term.wants_coefficient) continue;
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
            if (W == 1 && j >= a.count) break;
            const Term<Real>& term = a.terms[j];
            if (!term.wants_coefficient || term.coefficient.per != Per::row) continue;
            const float dot = warp_sum(sums[j]);
            if (lane_index() == 0) put_coefficient(term, place, 0, dot);
            sums[j] = 0.0f;
        }
    }
    const auto shared = shared_memory<float>(0, J * kRowsOfBlock);
#pragma unroll
    for (int j = 0; j < J; ++j) {
        const float sum = warp_sum(sums[j]);
        if (lane_index() == 0) shared[j * kRowsOfBlock + warp_index()] = sum;
    }
    __syncthreads();
    const int j = static_cast<int>(threadIdx.x);
    if (j >= J) return;
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRowsOfBlock; ++warp) total += shared[j * kRowsOfBlock + warp];
    a.partial[int64_t{j} * gridDim.x + blockIdx.x] = total;
}

// Coefficients that are one number: out (+)= factor·Σ over blocks of partial[j][block]; a block for each term j.
struct Finish {
    float* out;  // null: not wanted
    float factor;
    bool accumulate;
};
struct FinishArguments {
    Finish terms[kMaxTerms];
    const float* partial;
    int64_t blocks;
};
__global__ void __launch_bounds__(sizes::kReduceThreads) weighted_sum_finish_kernel(FinishArguments a) {
    Finish term{};
#pragma unroll
    for (unsigned j = 0; j < kMaxTerms; ++j)  // an index into the arguments would copy them to local memory
        if (blockIdx.x == j) term = a.terms[j];
    if (!term.out) return;
    const float* const partial = a.partial + blockIdx.x * a.blocks;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.blocks; i += sizes::kReduceThreads) sum += partial[i];
    sum = term.factor * block_sum(sum);
    if (threadIdx.x == 0) *term.out = term.accumulate ? *term.out + sum : sum;
}

Coefficient coefficient_of(const WeightedTerm& term) {
    const Tensor& c = term.coefficient;
    const bool rows = c.rank == 2;
    return {c.present() ? c.as<float>() : nullptr, rows ? c.row_stride : 0, term.factor,
            !rows          ? Per::all
            : c.cols() > 1 ? Per::head
                           : Per::row};
}

// Calls body.template operator()<J>() with the number of terms.
template <class Body, int... Js>
void with_terms(int count, Body&& body, std::integer_sequence<int, Js...>) {
    ((count == Js + 1 ? body.template operator()<Js + 1>() : void()), ...);
}

// Calls body.template operator()<W, J>(). aligned: whether rows of all tensors are.
template <class Real, class Body>
void with_sizes(bool aligned, int64_t head_size, int count, Body&& body) {
    constexpr int kWide = kVectorWidth<Real>;
    if (!aligned || head_size % kWide != 0) return body.template operator()<1, kMaxTerms>();
    with_terms(
        count, [&]<int J>() { body.template operator()<kWide, J>(); },
        std::make_integer_sequence<int, kMaxTerms>());
}

template <class Real, int J>
BackwardArguments<Real, J> backward_arguments(const op::WeightedSumBackward& a) {
    BackwardArguments<Real, J> result{};
    result.dy = Rows<Real>(a.dy);
    result.rows = a.dy.rows();
    result.count = count_terms(a.terms);
    result.heads = static_cast<int>(coefficient_heads(a.terms));
    result.head_size = static_cast<int>(a.dy.cols() / result.heads);
    result.sequence_length = static_cast<unsigned>(a.sequence_length);
    result.any_shift = any_shifted(a.terms);
    bool accumulate = false;  // of neighbours with one dsource: as the first says
    for (int j = 0; j < result.count; ++j) {
        const TermGradient& g = a.gradients[j];
        if (!joins_previous(a.gradients, j)) accumulate = g.accumulate_source;
        const bool carries = j + 1 < result.count && joins_previous(a.gradients, j + 1);
        result.terms[j] = {Rows<Real>(a.terms[j].source),
                           Rows<Real>(g.dsource),
                           coefficient_of(a.terms[j]),
                           Rows<float>(g.dcoefficient),
                           a.terms[j].shifted,
                           carries,
                           g.dsource.present() && !carries,
                           g.dsource.present() && !carries && accumulate,
                           g.dcoefficient.present(),
                           g.accumulate_coefficient};
    }
    return result;
}

}  // namespace

void CudaOps::weighted_sum_forward(const op::WeightedSumForward& a, Stream& stream) {
    check(a);
    const int count = count_terms(a.terms);
    const int64_t heads = coefficient_heads(a.terms), head_size = a.y.cols() / heads;
    cuda::with_real(a.y.dtype, [&]<class Real>() {
        bool aligned = aligned_rows(kVectorWidth<Real>, {a.y});
        for (const WeightedTerm& term : a.terms)
            aligned = aligned && aligned_rows(kVectorWidth<Real>, {term.source});
        with_sizes<Real>(aligned, head_size, count, [&]<int W, int J>() {
            Sum<Real, J> body{};
            body.y = Rows<Real>(a.y);
            for (int j = 0; j < count; ++j) {
                body.sources[j] = Rows<Real>(a.terms[j].source);
                body.coefficients[j] = coefficient_of(a.terms[j]);
                body.shifted[j] = a.terms[j].shifted;
            }
            body.count = count;
            body.head_size = static_cast<unsigned>(head_size);
            body.sequence_length = static_cast<unsigned>(a.sequence_length);
            body.any_head = heads > 1;
            body.any_shift = any_shifted(a.terms);
            map<W>({a.y.rows(), a.y.cols()}, body, stream);
        });
    });
}

void CudaOps::weighted_sum_backward(const op::WeightedSumBackward& a, Stream& stream) {
    check(a);
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
