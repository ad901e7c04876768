#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::row_of;
using cpu::Vec;

// Returns factor·c of a head in row t.
float weight_of(const WeightedTerm& term, int64_t t, int64_t head) {
    const Tensor& c = term.coefficient;
    if (!c.present()) return term.factor;
    if (c.rank == 1) return term.factor * *c.as<float>();
    return term.factor * c.as<float>()[t * c.row_stride + (c.cols() > 1 ? head : 0)];
}

// body<N>() with N = count, or 0 above 3: a loop over a constant number of terms keeps its values in registers.
template <class Body>
void with_count(int count, const Body& body) {
    switch (count) {
        case 1:
            return body.template operator()<1>();
        case 2:
            return body.template operator()<2>();
        case 3:
            return body.template operator()<3>();
        default:
            return body.template operator()<0>();
    }
}

template <class Real>
void forward_row(const op::WeightedSumForward& a, int64_t t) {
    const int64_t heads = coefficient_heads(a.terms), head_size = a.y.cols() / heads;
    const bool first = t % a.sequence_length == 0;
    const int given = count_terms(a.terms);
    for (int64_t head = 0; head < heads; ++head) {
        const Real* sources[kMaxTerms];
        float weights[kMaxTerms];
        int count = 0;
        for (int j = 0; j < given; ++j) {
            const WeightedTerm& term = a.terms[j];
            if (term.shifted && first) continue;
            sources[count] = row_of<Real>(term.source, term.shifted ? t - 1 : t) + head * head_size;
            weights[count++] = weight_of(term, t, head);
        }
        Real* out = row_of<Real>(a.y, t) + head * head_size;
        with_count(count, [&]<int N>() {
            const int terms = N > 0 ? N : count;
            cpu::for_vectors(head_size, [&](int64_t i, auto width) {
                Vec sum = terms > 0 ? weights[0] * cpu::load(sources[0] + i, width) : Vec();
                for (int j = 1; j < terms; ++j) sum += weights[j] * cpu::load(sources[j] + i, width);
                cpu::store(out + i, sum, width);
            });
        });
    }
}

// Row t of a term in backward. A shifted term reads row t + 1 of dy.
template <class Real>
struct TermRow {
    bool shifted;
    const Real* dy;      // null: a shifted term at the end of a sequence
    const Real* source;  // null: dc not requested, or dy null
    Real* dsource;       // null: not requested, or joins_next
    bool joins_next;     // ds is added to the next term's, which has the same dsource
    bool needs_dsource;
    bool accumulate;
};

// Adds row t to scalar_sums: Σ dy·s of each term with a coefficient [1].
template <class Real>
void backward_row(const op::WeightedSumBackward& a, int64_t t, Vec* scalar_sums) {
    const int64_t heads = coefficient_heads(a.terms), head_size = a.dy.cols() / heads;
    const int64_t place = t % a.sequence_length;
    const int count = count_terms(a.terms);
    TermRow<Real> rows[kMaxTerms];
    bool accumulate = false;  // flag of the first term with the same dsource
    for (int j = 0; j < count; ++j) {
        const TermGradient& g = a.gradients[j];
        TermRow<Real>& row = rows[j];
        row.shifted = a.terms[j].shifted;
        const bool none = row.shifted && place == a.sequence_length - 1;
        row.dy = none ? nullptr : row_of<Real>(a.dy, a.terms[j].shifted ? t + 1 : t);
        row.source = g.dcoefficient.present() && !none ? row_of<Real>(a.terms[j].source, t) : nullptr;
        row.needs_dsource = g.dsource.present();
        row.joins_next = j + 1 < count && joins_previous(a.gradients, j + 1);
        row.dsource = row.joins_next ? nullptr : row_of<Real>(g.dsource, t);
        if (!joins_previous(a.gradients, j)) accumulate = g.accumulate_source;
        row.accumulate = accumulate;
    }
    Vec row_sums[kMaxTerms] = {};  // coefficients [T,1] if H > 1
    for (int64_t head = 0; head < heads; ++head) {
        float weights[kMaxTerms];
        Vec head_sums[kMaxTerms] = {};
        Vec* into[kMaxTerms];
        for (int j = 0; j < count; ++j) {
            const WeightedTerm& term = a.terms[j];
            const bool weighs = rows[j].needs_dsource && rows[j].dy;
            weights[j] = weighs ? weight_of(term, term.shifted ? t + 1 : t, head) : 0.0f;
            into[j] = term.coefficient.rank == 1         ? scalar_sums + j
                      : term.coefficient.cols() == heads ? head_sums + j
                                                         : row_sums + j;
        }
        with_count(count, [&]<int N>() {
            constexpr int kSize = N > 0 ? N : kMaxTerms;
            const int terms = N > 0 ? N : count;
            TermRow<Real> row[kSize];  // local copies: a store to dsource cannot change them
            Vec sums[kSize];
            for (int j = 0; j < terms; ++j) {
                row[j] = rows[j];
                sums[j] = *into[j];
            }
            const Real* dy = row_of<Real>(a.dy, t);
            cpu::for_vectors(head_size, [&](int64_t begin, auto width) {
                const int64_t i = head * head_size + begin;
                const Vec here = cpu::load(dy + i, width);  // dsource may alias dy
                Vec sum{};
                for (int j = 0; j < terms; ++j) {
                    Vec g = here;
                    if (row[j].shifted) g = row[j].dy ? cpu::load(row[j].dy + i, width) : Vec();
                    if (row[j].source) sums[j] = fma(g, cpu::load(row[j].source + i, width), sums[j]);
                    if (!row[j].needs_dsource) continue;
                    sum += weights[j] * g;
                    if (row[j].joins_next) continue;
                    if (row[j].accumulate) sum += cpu::load(row[j].dsource + i, width);
                    cpu::store(row[j].dsource + i, sum, width);
                    sum = Vec();
                }
            });
            for (int j = 0; j < terms; ++j) *into[j] = sums[j];
        });
        for (int j = 0; j < count; ++j) {
            const Tensor& dc = a.gradients[j].dcoefficient;
            if (!dc.present() || dc.rank == 1 || (dc.cols() != heads && head + 1 < heads)) continue;
            const int64_t column = dc.cols() == heads ? head : 0;
            const auto put = [&](int64_t row, float value) {
                float& out = dc.as<float>()[row * dc.row_stride + column];
                out = a.gradients[j].accumulate_coefficient ? out + value : value;
            };
            if (a.terms[j].shifted && place == 0) put(t, 0.0f);
            const Vec total = dc.cols() == heads ? head_sums[j] : row_sums[j];
            if (rows[j].source) put(a.terms[j].shifted ? t + 1 : t, a.terms[j].factor * cpu::sum(total));
        }
    }
}

void run(const op::WeightedSumBackward& a, float* partial) {
    const int64_t rows = a.dy.rows();
    const int count = count_terms(a.terms);
    cpu::with_real(a.dy.dtype, [&]<class Real>() {
        cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
            Vec sums[kMaxTerms] = {};
            const auto [begin, end] = cpu::chunk_of(rows, chunk, cpu::kReductionChunks);
            for (int64_t t = begin; t < end; ++t) backward_row<Real>(a, t, sums);
            for (int j = 0; j < count; ++j)
                partial[chunk * kMaxTerms + j] = a.terms[j].factor * cpu::sum(sums[j]);
        });
    });
    for (int j = 0; j < count; ++j) {
        const TermGradient& g = a.gradients[j];
        if (!g.dcoefficient.present() || g.dcoefficient.rank != 1) continue;
        cpu::add_chunks(g.dcoefficient.as<float>(), partial + j, kMaxTerms, 1, g.accumulate_coefficient);
    }
}

}  // namespace

void CpuOps::enqueue(const op::WeightedSumForward& a, Stream& stream) {
    cpu::submit(stream, "weighted_sum_forward", [a] {
        cpu::with_real(a.y.dtype, [&]<class Real>() {
            cpu::parallel_for(a.y.rows(), [&](int64_t t) { forward_row<Real>(a, t); });
        });
    });
}

void CpuOps::enqueue(const op::WeightedSumBackward& a, Stream& stream) {
    auto* partial =
        static_cast<float*>(workspace(stream, cpu::kReductionChunks * kMaxTerms * int64_t{sizeof(float)}));
    cpu::submit(stream, "weighted_sum_backward", [=] { run(a, partial); });
}

}  // namespace speedrun
