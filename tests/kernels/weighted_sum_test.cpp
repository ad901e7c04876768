// Covers: kernels/ops/combine.cpp
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace weighted_sum_test {

SPEEDRUN_OP_TEST(WeightedSumTest);

struct Shape {
    int64_t rows, sequence_length, heads, head_size;

    int64_t cols() const { return heads * head_size; }
    std::string describe() const {
        return fmt::format("T={} S={} H={} D={}", rows, sequence_length, heads, head_size);
    }
};

// Head sizes that are not whole vectors, that are no power of two of lanes, and that exceed one load of a
// warp; sequences of one row.
const std::vector<Shape> kShapes = {{1, 1, 1, 1},    {6, 3, 2, 5},   {33, 11, 3, 8},  {130, 65, 6, 16},
                                    {12, 12, 1, 96}, {40, 8, 5, 24}, {10, 5, 2, 264}, {7, 1, 33, 8}};

enum class Per { none, all, row, head };

struct TermKind {
    Per per;
    bool shifted;
};

// Eight terms that combine each kind of coefficient with both shifts; a sum of J terms has J of them, from
// the j-th on.
std::vector<TermKind> kinds_of(int count) {
    const TermKind all[] = {{Per::head, false}, {Per::all, false}, {Per::row, true},  {Per::none, false},
                            {Per::head, true},  {Per::row, false}, {Per::none, true}, {Per::all, true}};
    std::vector<TermKind> kinds;
    for (int j = 0; j < count; ++j) kinds.push_back(all[(j + count - 1) % 8]);
    return kinds;
}

std::vector<reference::WeightedTerm> random_terms(const Shape& shape, const std::vector<TermKind>& kinds,
                                                  DType dtype) {
    std::vector<reference::WeightedTerm> terms;
    for (const TermKind& kind : kinds) {
        const auto seed = static_cast<uint64_t>(100 + 10 * terms.size());
        const int64_t rows = kind.per == Per::none ? 0 : kind.per == Per::all ? 1 : shape.rows;
        const int64_t cols = kind.per == Per::none ? 0 : kind.per == Per::head ? shape.heads : 1;
        terms.push_back({random_matrix(shape.rows, shape.cols(), seed, dtype),
                         random_matrix(rows, cols, seed + 1, DType::f32), terms.size() % 3 == 1 ? -0.5 : 1.0,
                         kind.shifted});
    }
    return terms;
}

// Columns from `begin` on of a tensor that has `more` additional ones.
struct Slice {
    int64_t begin, more;
};

Tensor sliced(Harness& h, const Matrix& values, DType dtype, Slice slice, bool changes) {
    Matrix wide(values.rows, values.cols + slice.more);
    for (int64_t t = 0; t < values.rows; ++t) {
        for (int64_t i = 0; i < values.cols; ++i) wide(t, slice.begin + i) = values(t, i);
    }
    return (changes ? h.inout(wide, dtype) : h.input(wide, dtype)).column_slice(slice.begin, values.cols);
}

// Whole tensors, slices with rows aligned to 16 bytes, and slices with unaligned rows.
const Slice kSlices[] = {{0, 0}, {8, 24}, {1, 2}};

WeightedTerms upload(Harness& h, const std::vector<reference::WeightedTerm>& terms,
                     const std::vector<TermKind>& kinds, DType dtype, Slice slice) {
    WeightedTerms result;
    for (size_t j = 0; j < terms.size(); ++j) {
        const Matrix& c = terms[j].coefficient;
        Tensor coefficient;
        if (kinds[j].per == Per::all) coefficient = h.input(c, DType::f32, {1});
        if (kinds[j].per == Per::row || kinds[j].per == Per::head)
            coefficient = sliced(h, c, DType::f32, slice, false);
        result[j] = {.source = sliced(h, terms[j].source, dtype, slice, false),
                     .coefficient = coefficient,
                     .factor = static_cast<float>(terms[j].factor),
                     .shifted = terms[j].shifted};
    }
    return result;
}

TEST_P(WeightedSumTest, Forward) {
    for (const Shape& shape : kShapes) {
        for (const Slice& slice : kSlices) {
            for (int count = 1; count <= kMaxTerms; ++count) {
                SCOPED_TRACE(fmt::format("{} J={} slice={}", shape.describe(), count, slice.begin));
                const auto kinds = kinds_of(count);
                const auto terms = random_terms(shape, kinds, dtype());
                const Outputs out = run([&](Harness& h) -> Outputs {
                    const Tensor y = h.output(dtype(), {shape.rows, shape.cols() + slice.more})
                                         .column_slice(slice.begin, shape.cols());
                    h.call(op::WeightedSumForward{.y = y,
                                                  .terms = upload(h, terms, kinds, dtype(), slice),
                                                  .sequence_length = shape.sequence_length});
                    return {h.read(y)};
                });
                expect_close(out[0], reference::weighted_sum_forward(terms, shape.sequence_length),
                             few_operations(dtype()), "y");
            }
        }
    }
}

// Σ dy·s over `products` terms may nearly cancel: compared relative to its typical size √products.
Tolerance of_sum(int64_t products) {
    return {16 * kF32Roundoff, 0, 8 * static_cast<double>(products) * kF32Roundoff};
}

struct Wanted {
    bool sources, coefficients, accumulate;  // the last: every other source and coefficient
};

class Backward {
  public:
    Backward(const Shape& shape, int count, DType dtype)
        : shape_(shape), dtype_(dtype), kinds_(kinds_of(count)), terms_(random_terms(shape, kinds_, dtype)) {}

    // All requested gradients, dsource before dcoefficient, term by term.
    Outputs operator()(Harness& h, Slice slice, Wanted wanted) const {
        op::WeightedSumBackward a{.gradients = {},
                                  .dy = sliced(h, dy(), dtype_, slice, false),
                                  .terms = upload(h, terms_, kinds_, dtype_, slice),
                                  .sequence_length = shape_.sequence_length};
        for (int j = 0; j < count(); ++j) {
            TermGradient& g = a.gradients[j];
            g.accumulate_source = accumulates_source(j, wanted);
            g.accumulate_coefficient = accumulates_coefficient(j, wanted);
            if (wanted.sources) g.dsource = sliced(h, before(j), dtype_, slice, true);
            if (!wanted.coefficients || kinds_[j].per == Per::none) continue;
            const Matrix c = coefficient_before(j);
            g.dcoefficient = kinds_[j].per == Per::all ? h.inout(c, DType::f32, {1})
                                                       : sliced(h, c, DType::f32, slice, true);
        }
        h.call(a);
        Outputs out;
        for (const TermGradient& g : a.gradients) {
            for (const Tensor& tensor : {g.dsource, g.dcoefficient})
                if (tensor.present()) out.push_back(h.read(tensor));
        }
        return out;
    }

    void expect(const Outputs& out, Wanted wanted) const {
        const auto gradients = reference::weighted_sum_backward(dy(), terms_, shape_.sequence_length);
        size_t next = 0;
        for (int j = 0; j < count(); ++j) {
            Matrix ds = gradients[j].dsource, dc = gradients[j].dcoefficient;
            if (accumulates_source(j, wanted)) ds = reference::plus(ds, before(j));
            if (wanted.sources)
                expect_close(out.at(next++), ds, few_operations(dtype_), fmt::format("ds of term {}", j));
            if (!wanted.coefficients || kinds_[j].per == Per::none) continue;
            if (accumulates_coefficient(j, wanted)) dc = reference::plus(dc, coefficient_before(j));
            expect_close(out.at(next++), dc, of_sum(shape_.rows * shape_.cols() / dc.size()),
                         fmt::format("dc of term {}", j));
        }
        EXPECT_EQ(next, out.size());
    }

  private:
    int count() const { return static_cast<int>(kinds_.size()); }
    bool accumulates_source(int j, Wanted w) const { return w.sources && w.accumulate && j % 2 == 0; }
    bool accumulates_coefficient(int j, Wanted w) const {
        return w.coefficients && w.accumulate && j % 2 == 1;
    }
    Matrix dy() const { return random_matrix(shape_.rows, shape_.cols(), 1, dtype_); }
    Matrix before(int j) const { return random_matrix(shape_.rows, shape_.cols(), 20 + j, dtype_); }
    Matrix coefficient_before(int j) const {
        const Matrix& c = terms_[j].coefficient;
        return random_matrix(c.rows, c.cols, 40 + j, DType::f32);
    }

    Shape shape_;
    DType dtype_;
    std::vector<TermKind> kinds_;
    std::vector<reference::WeightedTerm> terms_;
};

TEST_P(WeightedSumTest, Backward) {
    for (const Shape& shape : kShapes) {
        for (int count = 1; count <= kMaxTerms; ++count) {
            for (const Wanted& wanted :
                 {Wanted{true, true, false}, {true, true, true}, {true, false, true}, {false, true, true}}) {
                const Slice& slice = kSlices[(count + shape.rows) % 3];
                SCOPED_TRACE(fmt::format("{} J={} slice={} wanted={}{}{}", shape.describe(), count,
                                         slice.begin, wanted.sources, wanted.coefficients,
                                         wanted.accumulate));
                const Backward backward(shape, count, dtype());
                backward.expect(run([&](Harness& h) { return backward(h, slice, wanted); }), wanted);
            }
        }
    }
}

// More rows than warps of the largest grid: each warp processes several.
TEST_P(WeightedSumTest, BackwardOfManyRows) {
    const Shape shape{8196, 2049, 2, 8};
    const Backward backward(shape, 3, dtype());
    const Wanted wanted{true, true, true};
    backward.expect(run([&](Harness& h) { return backward(h, kSlices[0], wanted); }), wanted);
}

// Smear: a row and the row before it are from one tensor. Both terms of its gradient are summed before
// rounding.
TEST_P(WeightedSumTest, NeighboursShareTheirGradient) {
    const Shape shape{33, 11, 1, 48};
    for (bool accumulate : {false, true}) {
        SCOPED_TRACE(accumulate);
        const Matrix source = random_matrix(33, 48, 1, dtype()), dy = random_matrix(33, 48, 2, dtype());
        const Matrix gate = random_matrix(33, 1, 3, DType::f32), before = random_matrix(33, 48, 4, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor s = h.input(source, dtype()), ds = h.inout(before, dtype());
            const Tensor dgate = h.output(DType::f32, {33, 1});
            h.call(op::WeightedSumBackward{
                .gradients =
                    {{{.dsource = ds, .accumulate_source = accumulate, .accumulate_coefficient = false},
                      {.dsource = ds,
                       .dcoefficient = dgate,
                       .accumulate_source = true,
                       .accumulate_coefficient = false}}},
                .dy = h.input(dy, dtype()),
                .terms = {{{.source = s},
                           {.source = s, .coefficient = h.input(gate, DType::f32), .shifted = true}}},
                .sequence_length = shape.sequence_length});
            return {h.read(ds), h.read(dgate)};
        });
        const auto gradients = reference::weighted_sum_backward(dy, {{source}, {source, gate, 1.0, true}},
                                                                shape.sequence_length);
        Matrix ds = reference::plus(gradients[0].dsource, gradients[1].dsource);
        if (accumulate) ds = reference::plus(ds, before);
        expect_close(out[0], ds, few_operations(dtype()), "ds");
        expect_close(out[1], gradients[1].dcoefficient, of_sum(48), "dgate");
    }
}

// Values that a shift does not use are arbitrary: the last row of each sequence, the coefficient of the
// first.
TEST_P(WeightedSumTest, NothingCrossesSequences) {
    const int64_t rows = 12, cols = 32, length = 4;
    Matrix source = random_matrix(rows, cols, 1, dtype()), c = random_matrix(rows, 1, 2, DType::f32);
    Matrix dy = random_matrix(rows, cols, 3, dtype());
    for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < cols; ++i) {
            if (t % length == length - 1) source(t, i) = std::nan("");
            if (t % length == 0) dy(t, i) = std::nan("");
        }
        if (t % length == 0) c(t, 0) = std::nan("");
    }
    const Matrix number(1, 1, 0.75);  // coefficient of a second term, of the same source
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor s = h.input(source, dtype());
        const WeightedTerms terms = {
            {{.source = s, .coefficient = h.input(c, DType::f32), .shifted = true},
             {.source = s, .coefficient = h.input(number, DType::f32, {1}), .shifted = true}}};
        const Tensor y = h.output(dtype(), {rows, cols});
        h.call(op::WeightedSumForward{.y = y, .terms = terms, .sequence_length = length});
        Outputs result = {h.read(y)};
        TermGradients gradients{};
        for (int j = 0; j < 2; ++j) {
            gradients[j].dsource = h.output(dtype(), {rows, cols});
            gradients[j].dcoefficient = j == 0 ? h.output(DType::f32, {rows, 1}) : h.output(DType::f32, {1});
        }
        h.call(op::WeightedSumBackward{
            .gradients = gradients, .dy = h.input(dy, dtype()), .terms = terms, .sequence_length = length});
        for (int j = 0; j < 2; ++j) {
            result.push_back(h.read(gradients[j].dsource));
            result.push_back(h.read(gradients[j].dcoefficient));
        }
        return result;
    });
    const std::vector<reference::WeightedTerm> terms = {{source, c, 1.0, true}, {source, number, 1.0, true}};
    const auto gradients = reference::weighted_sum_backward(dy, terms, length);
    expect_close(out[0], reference::weighted_sum_forward(terms, length), few_operations(dtype()), "y");
    for (int j = 0; j < 2; ++j) {
        SCOPED_TRACE(j);
        expect_close(out[1 + 2 * j], gradients[j].dsource, few_operations(dtype()), "ds");
        expect_close(out[2 + 2 * j], gradients[j].dcoefficient, of_sum(j == 0 ? cols : rows * cols), "dc");
    }
}

}  // namespace weighted_sum_test
}  // namespace speedrun::testing
