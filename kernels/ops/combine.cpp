#include "kernels/ops/combine.h"

namespace speedrun {

namespace {

// out: y or dy. The sources have its shape and dtype.
void check_terms(const WeightedTerms& terms, Tensor out, int64_t sequence_length) {
    const int64_t rows = out.rows(), cols = out.cols(), heads = coefficient_heads(terms);
    const int count = count_terms(terms);
    if (out.rank != 2 || count == 0) throw_internal("weighted_sum: {} terms for {}", count, out.describe());
    if (rows > INT32_MAX || cols > INT32_MAX) throw_internal("weighted_sum: {} is too large", out.describe());
    if (sequence_length <= 0 || rows % sequence_length != 0) {
        throw_internal("weighted_sum: {} rows are not a multiple of the sequence length {}", rows,
                       sequence_length);
    }
    if (cols % heads != 0)
        throw_internal("weighted_sum: {} columns are not a multiple of {} coefficients", cols, heads);
    for (int j = 0; j < kMaxTerms; ++j) {
        const Tensor &source = terms[j].source, &coefficient = terms[j].coefficient;
        if (j >= count && (source.present() || coefficient.present()))
            throw_internal("weighted_sum: term {} follows one without a source", j);
        if (j >= count) continue;
        expect(source, out.dtype, {rows, cols}, "weighted_sum source");
        if (!coefficient.present()) continue;
        if (coefficient.rank == 1) {
            expect(coefficient, DType::f32, {1}, "weighted_sum coefficient");
        } else {
            expect(coefficient, DType::f32, {rows, coefficient.cols() == 1 ? 1 : heads},
                   "weighted_sum coefficient");
        }
    }
}

void check_term_gradients(const op::WeightedSumBackward& a) {
    for (int j = 0; j < kMaxTerms; ++j) {
        const TermGradient& g = a.gradients[j];
        if (j >= count_terms(a.terms) && (g.dsource.present() || g.dcoefficient.present()))
            throw_internal("weighted_sum: a gradient is wanted of term {} of {}", j, count_terms(a.terms));
        if (g.dcoefficient.present()) {
            const Tensor& c = a.terms[j].coefficient;
            if (!c.present()) throw_internal("weighted_sum: term {} has no coefficient, but its gradient", j);
            if (c.rank == 1) {
                expect(g.dcoefficient, DType::f32, {1}, "weighted_sum dcoefficient");
            } else {
                expect(g.dcoefficient, DType::f32, {c.rows(), c.cols()}, "weighted_sum dcoefficient");
            }
        }
        if (!g.dsource.present()) continue;
        expect(g.dsource, a.dy.dtype, {a.dy.rows(), a.dy.cols()}, "weighted_sum dsource");
        if (same_memory(g.dsource, a.dy) && any_shifted(a.terms))
            throw_internal("weighted_sum: dsource {} is dy, but a term is shifted", j);
        for (int i = 0; i < j; ++i) {
            if (!same_memory(a.gradients[i].dsource, g.dsource)) continue;
            if (!joins_previous(a.gradients, j) || !g.accumulate_source)
                throw_internal(
                    "weighted_sum: dsource {} is that of term {}, but no neighbour that accumulates", j, i);
        }
    }
}

// Checks arguments of narrow_linear_forward and narrow_linear_backward.
template <class Arguments>
void check_narrow(const Arguments& a) {
    const int64_t rows = a.x.rows(), outputs = a.weight.rank == 2 ? a.weight.shape[0] : 0;
    const auto fits = [](int64_t size) { return size >= 1 && size <= kMaxNarrow; };
    if (a.x.rank != 2 || !fits(outputs) || !fits(a.x.cols()))
        throw_internal(
            "narrow_linear: x {} and weight {} are not [T,K] and [N,K] with 1 to {} columns and rows",
            a.x.describe(), a.weight.describe(), kMaxNarrow);
    const DType weight_type = a.weight.dtype == DType::f32 ? DType::f32 : a.x.dtype;
    expect(a.weight, weight_type, {outputs, a.x.cols()}, "narrow_linear weight");
    if (!a.weight.contiguous())
        throw_internal("narrow_linear: weight {} is not contiguous", a.weight.describe());
    expect(a.y, DType::f32, {rows, outputs}, "narrow_linear y");
}

}  // namespace

void op::WeightedSumForward::check() const {
    check_terms(terms, y, sequence_length);
    for (int j = 0; j < count_terms(terms); ++j) {
        if (terms[j].shifted && same_memory(terms[j].source, y))
            throw_internal("weighted_sum: y is the source of term {}, which is shifted", j);
    }
}

void op::WeightedSumBackward::check() const {
    check_terms(terms, dy, sequence_length);
    check_term_gradients(*this);
}

void op::SharedSourcesBackward::check() const {
    const int num_sources = count_sources(sources), num_sums = count_sums(sums);
    const Tensor& first = sources[0].source;
    if (num_sources == 0 || num_sums == 0)
        throw_internal("shared_sources: {} sources of {} sums", num_sources, num_sums);
    if (first.rank != 2 || first.rows() > INT32_MAX || first.cols() > INT32_MAX)
        throw_internal("shared_sources: {} is no matrix, or too large", first.describe());
    const int64_t rows = first.rows(), cols = first.cols();
    for (int m = 0; m < num_sources; ++m) {
        expect(sources[m].source, first.dtype, {rows, cols}, "shared_sources source");
        expect(sources[m].dsource, first.dtype, {rows, cols}, "shared_sources dsource");
    }
    if (num_sources == 2 && same_memory(sources[0].dsource, sources[1].dsource))
        throw_internal("shared_sources: both sources have one dsource");
    for (int l = 0; l < num_sums; ++l) {
        expect(sums[l].dy, first.dtype, {rows, cols}, "shared_sources dy");
        for (int m = 0; m < kMaxShared; ++m) {
            const SharedTerm& term = sums[l].terms[m];
            if (m < num_sources && same_memory(sources[m].dsource, sums[l].dy))
                throw_internal("shared_sources: dsource {} is the dy of sum {}", m, l);
            if (term.coefficient.present() != term.dcoefficient.present())
                throw_internal(
                    "shared_sources: coefficient and dcoefficient are given together or not at all");
            if (!term.coefficient.present()) continue;
            if (m >= num_sources)
                throw_internal("shared_sources: sum {} has a term of source {} of {}", l, m, num_sources);
            expect(term.coefficient, DType::f32, {rows, 1}, "shared_sources coefficient");
            expect(term.dcoefficient, DType::f32, {rows, 1}, "shared_sources dcoefficient");
        }
    }
}

void op::NarrowLinearForward::check() const {
    check_narrow(*this);
    if (bias.present()) expect(bias, DType::f32, {y.cols()}, "narrow_linear bias");
}

void op::NarrowLinearBackward::check() const {
    check_narrow(*this);
    expect(dy, DType::f32, {y.rows(), y.cols()}, "narrow_linear dy");
    if (dx.present()) expect(dx, x.dtype, {x.rows(), x.cols()}, "narrow_linear dx");
    if (dbias.present()) expect(dbias, DType::f32, {y.cols()}, "narrow_linear dbias");
    if (!dweight.present()) return;
    expect(dweight, DType::f32, {y.cols(), x.cols()}, "narrow_linear dweight");
    if (!dweight.contiguous())
        throw_internal("narrow_linear: dweight {} is not contiguous", dweight.describe());
}

}  // namespace speedrun
