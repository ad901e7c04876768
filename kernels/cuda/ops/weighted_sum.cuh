// Common code of the weighted-sum kernels: their terms, and a chunk of a sum or of its gradients.
#pragma once

#include <utility>

#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/ops/combine.h"

namespace speedrun::weighted {

// Granularity of a coefficient.
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

inline Coefficient coefficient_of(const WeightedTerm& term) {
    const Tensor& c = term.coefficient;
    const bool rows = c.rank == 2;
    return {c.present() ? c.as<float>() : nullptr, rows ? c.row_stride : 0, term.factor,
            !rows          ? Per::all
            : c.cols() > 1 ? Per::head
                           : Per::row};
}

template <class Real, int J>
struct Sum {
    Rows<Real> y, sources[J];
    Coefficient coefficients[J];
    bool shifted[J];
    int count;  // J, unless W is 1
    unsigned head_size, sequence_length;
    bool any_head, any_shift;

    explicit Sum(const op::WeightedSumForward& a)
        : y(a.y),
          sources{},
          coefficients{},
          shifted{},
          count(count_terms(a.terms)),
          sequence_length(static_cast<unsigned>(a.sequence_length)),
          any_shift(any_shifted(a.terms)) {
        const int64_t heads = coefficient_heads(a.terms);
        head_size = static_cast<unsigned>(a.y.cols() / heads);
        any_head = heads > 1;
        for (int j = 0; j < count; ++j) {
            sources[j] = Rows<Real>(a.terms[j].source);
            coefficients[j] = coefficient_of(a.terms[j]);
            shifted[j] = a.terms[j].shifted;
        }
    }

    // The sources of the terms of a row. starts: the row is the first of a sequence.
    struct Row {
        const Real* sources[J];
        int64_t row;
        bool starts;
    };
    __device__ __forceinline__ Row row_of(int64_t row) const {
        Row result{{}, row, any_shift && static_cast<unsigned>(row) % sequence_length == 0};
#pragma unroll
        for (int j = 0; j < J; ++j)
            result.sources[j] = sources[j].at(shifted[j] && !result.starts ? row - 1 : row);
        return result;
    }
    template <int W>
    struct Loaded {
        Packed<W, Real> of[J] = {};
    };
    template <int W>
    __device__ __forceinline__ Loaded<W> load(const Row& row, int64_t col) const {
        Loaded<W> loaded;
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (W == 1 && j >= count) break;
            loaded.of[j] = load_packed<W>(row.sources[j] + col);
        }
        return loaded;
    }
    // W elements of a row, before rounding.
    template <int W>
    __device__ __forceinline__ Vector<W> at(const Row& row, int64_t col, const Loaded<W>& loaded) const {
        const int64_t head = any_head ? static_cast<unsigned>(col) / head_size : 0;
        float weights[J] = {};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (W == 1 && j >= count) break;
            weights[j] = coefficients[j].at(row.row, head);
        }
        Vector<W> sum{};
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (W == 1 && j >= count) break;
            if (shifted[j] && row.starts) continue;
            const Vector<W> s = unpack(loaded.of[j]);
#pragma unroll
            for (int i = 0; i < W; ++i) sum[i] += weights[j] * s[i];
        }
        return sum;
    }
    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W>) const {
        const Row of = row_of(row);
        store_vector<W>(y.at(row, col), at<W>(of, col, load<W>(of, col)));
    }
};

// Two adjacent terms with one dsource: the first carries, the second stores the sum of both.
template <class Real>
struct Term {
    Rows<Real> source, dsource;
    Coefficient coefficient;
    Rows<float> dcoefficient;
    bool shifted, carries, stores_source, accumulate_source, needs_coefficient, accumulate_coefficient;
};

template <class Real, int J>
struct BackwardArguments {
    Rows<Real> dy;
    Term<Real> terms[J];
    float* partial;  // [J][blocks]: sums of scalar coefficients
    int64_t rows;
    int count, heads, head_size, group;  // count: J, unless that is kMaxTerms
    unsigned sequence_length;
    bool any_shift;
};

constexpr int kRowsOfBlock = sizes::kRowThreads / sizes::kWarp;

// A row and its position in its sequence.
struct Place {
    int64_t row;
    bool first, last;
};

// dc of a row and head (+)= factor·dot. A shifted term also has dc (+)= 0 for the first row of a sequence.
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

// As store_vector, whose word the compiler would split into four stores here.
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

// dy of a chunk, and of the next row if a term is shifted, and the sources, from memory.
template <class Real, int W>
struct Loaded {
    static constexpr bool kShifts = true;
    Packed<W, Real> here, after;

    template <class Arguments>
    __device__ __forceinline__ void load(const Arguments& a, Place place, int64_t col) {
        here = load_packed<W>(a.dy.at(place.row, col));
        after = {};
        if (a.any_shift && !place.last) after = load_packed<W>(a.dy.at(place.row + 1, col));
    }
    __device__ __forceinline__ Vector<W> value() const { return unpack(here); }
    __device__ __forceinline__ Vector<W> next() const { return unpack(after); }
    __device__ __forceinline__ Packed<W, Real> source(int, const Real* p) const { return load_packed<W>(p); }
};
// dy of a chunk in registers; no term is shifted. source(j, p) returns the chunk at p of source j.
template <int W, class Source>
struct Given {
    static constexpr bool kShifts = false;
    Vector<W> dy;
    const Source& source;

    template <class Arguments>
    __device__ __forceinline__ void load(const Arguments&, Place, int64_t) {}
    __device__ __forceinline__ Vector<W> value() const { return dy; }
    __device__ __forceinline__ Vector<W> next() const { return {}; }
};

// A chunk of one row and head; dots[j] (+)= its terms of Σ dy·s.
template <class Real, int W, int J, class Dy>
__device__ __forceinline__ void backward_chunk(const BackwardArguments<Real, J>& a, Place place, int64_t col,
                                               Dy dy, const float (&weights)[J], float (&dots)[J]) {
    dy.load(a, place, col);
    Packed<W, Real> sources[J] = {}, before[J] = {};
#pragma unroll
    for (int j = 0; j < J; ++j) {
        if (J == kMaxTerms && j >= a.count) break;
        const Term<Real>& term = a.terms[j];
        if (term.needs_coefficient && !(term.shifted && place.last))
            sources[j] = dy.source(j, term.source.at(place.row, col));
        if (term.accumulate_source) before[j] = load_packed<W>(term.dsource.at(place.row, col));
    }
    // No branches except around the stores: values that are not requested were not loaded, and are 0.
    const Vector<W> here = dy.value(), after = dy.next();
    Vector<W> sum{};
#pragma unroll
    for (int j = 0; j < J; ++j) {
        if (J == kMaxTerms && j >= a.count) break;
        const Term<Real>& term = a.terms[j];
        const Vector<W> s = unpack(sources[j]), old = unpack(before[j]);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float g = Dy::kShifts && term.shifted ? after[i] : here[i];
            dots[j] = fmaf(g, s[i], dots[j]);
            sum[i] = sum[i] + weights[j] * g + old[i];
        }
        if (term.stores_source) store_whole(term.dsource.at(place.row, col), pack<Real>(sum));
#pragma unroll
        for (int i = 0; i < W; ++i) sum[i] = term.carries ? sum[i] : 0.0f;
    }
}

// Block sums of scalar coefficients; each thread passes its own.
template <class Real, int J>
__device__ __forceinline__ void store_partials(const BackwardArguments<Real, J>& a, const float (&sums)[J]) {
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

// ---- on the host

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
    bool accumulate = false;  // adjacent terms share dsource: the first one's value applies
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

// Calls body.template operator()<J>() with the number of terms.
template <class Body, int... Js>
void with_terms(int count, Body&& body, std::integer_sequence<int, Js...>) {
    ((count == Js + 1 ? body.template operator()<Js + 1>() : void()), ...);
}

// True if rows of y and of all sources can be accessed as vectors.
template <class Real>
bool aligned_sources(const op::WeightedSumForward& a) {
    bool aligned = aligned_rows(kVectorWidth<Real>, {a.y});
    for (const WeightedTerm& term : a.terms)
        aligned = aligned && aligned_rows(kVectorWidth<Real>, {term.source});
    return aligned;
}

}  // namespace speedrun::weighted
