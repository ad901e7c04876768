// Covers: kernels/ops/combine.cpp
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::weighted_sum_test {

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

// Whole tensors, slices with rows aligned to 16 bytes, and slices with unaligned rows.
const Margin kMargins[] = {{0, 0}, {8, 16}, {1, 1}};

WeightedTerms upload(Harness& h, const std::vector<reference::WeightedTerm>& terms,
                     const std::vector<TermKind>& kinds, DType dtype, Margin margin) {
    WeightedTerms result;
    for (size_t j = 0; j < terms.size(); ++j) {
        const Matrix& c = terms[j].coefficient;
        Tensor coefficient;
        if (kinds[j].per == Per::all) coefficient = h.input(c, DType::f32, {1});
        if (kinds[j].per == Per::row || kinds[j].per == Per::head)
            coefficient = h.input(c, DType::f32, margin);
        result[j] = {.source = h.input(terms[j].source, dtype, margin),
                     .coefficient = coefficient,
                     .factor = static_cast<float>(terms[j].factor),
                     .shifted = terms[j].shifted};
    }
    return result;
}

TEST_P(WeightedSumTest, Forward) {
    for (const Shape& shape : kShapes) {
        for (const Margin& margin : kMargins) {
            for (int count = 1; count <= kMaxTerms; ++count) {
                SCOPED_TRACE(fmt::format("{} J={} slice={}", shape.describe(), count, margin.left));
                const auto kinds = kinds_of(count);
                const auto terms = random_terms(shape, kinds, dtype());
                const Matrix expected = reference::weighted_sum_forward(terms, shape.sequence_length);
                check([&](Harness& h) -> Checks {
                    const Tensor y = h.output(expected, dtype(), margin);
                    h.call(op::WeightedSumForward{.y = y,
                                                  .terms = upload(h, terms, kinds, dtype(), margin),
                                                  .sequence_length = shape.sequence_length});
                    return {{y, expected, "y", few_operations(dtype())}};
                });
            }
        }
    }
}

struct Requested {
    bool sources, coefficients, accumulate;  // the last: every other source and coefficient
};

class Backward {
  public:
    Backward(const Shape& shape, int count, DType dtype)
        : shape_(shape),
          dtype_(dtype),
          kinds_(kinds_of(count)),
          terms_(random_terms(shape, kinds_, dtype)),
          expected_(reference::weighted_sum_backward(dy(), terms_, shape.sequence_length)) {}

    // All requested gradients.
    Checks operator()(Harness& h, Margin margin, Requested requested) const {
        op::WeightedSumBackward a{.gradients = {},
                                  .dy = h.input(dy(), dtype_, margin),
                                  .terms = upload(h, terms_, kinds_, dtype_, margin),
                                  .sequence_length = shape_.sequence_length};
        Checks checks;
        for (int j = 0; j < count(); ++j) {
            TermGradient& g = a.gradients[j];
            const auto& [ds, dc] = expected_[j];
            g.accumulate_source = requested.sources && requested.accumulate && j % 2 == 0;
            g.accumulate_coefficient = requested.coefficients && requested.accumulate && j % 2 == 1;
            if (requested.sources) g.dsource = h.inout(before(j), dtype_, margin);
            const Matrix c = coefficient_before(j);
            if (requested.coefficients && kinds_[j].per != Per::none)
                g.dcoefficient =
                    kinds_[j].per == Per::all ? h.inout(c, DType::f32, {1}) : h.inout(c, DType::f32, margin);
            checks.push_back({g.dsource, added(g.accumulate_source, ds, before(j)),
                              fmt::format("ds of term {}", j), few_operations(dtype_)});
            checks.push_back({g.dcoefficient, added(g.accumulate_coefficient, dc, c),
                              fmt::format("dc of term {}", j),
                              cancelling(shape_.rows * shape_.cols() / std::max<int64_t>(1, dc.size()))});
        }
        h.call(a);
        return checks;
    }

  private:
    int count() const { return static_cast<int>(kinds_.size()); }
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
    std::vector<reference::WeightedTermGradient> expected_;
};

TEST_P(WeightedSumTest, Backward) {
    for (const Shape& shape : kShapes) {
        for (int count = 1; count <= kMaxTerms; ++count) {
            for (const Requested& requested : {Requested{true, true, false},
                                               {true, true, true},
                                               {true, false, true},
                                               {false, true, true}}) {
                const Margin& margin = kMargins[(count + shape.rows) % 3];
                SCOPED_TRACE(fmt::format("{} J={} slice={} wanted={}{}{}", shape.describe(), count,
                                         margin.left, requested.sources, requested.coefficients,
                                         requested.accumulate));
                const Backward backward(shape, count, dtype());
                check([&](Harness& h) { return backward(h, margin, requested); });
            }
        }
    }
}

// More rows than warps of the largest grid: each warp processes several.
TEST_P(WeightedSumTest, BackwardOfManyRows) {
    const Shape shape{8196, 2049, 2, 8};
    const Backward backward(shape, 3, dtype());
    check([&](Harness& h) { return backward(h, kMargins[0], {true, true, true}); });
}

// Smear: a row and the row before it are from one tensor. Both terms of its gradient are summed before
// rounding.
TEST_P(WeightedSumTest, ShiftedTermsShareGradient) {
    const Shape shape{33, 11, 1, 48};
    const Matrix source = random_matrix(33, 48, 1, dtype()), dy = random_matrix(33, 48, 2, dtype());
    const Matrix gate = random_matrix(33, 1, 3, DType::f32), before = random_matrix(33, 48, 4, dtype());
    const auto expected =
        reference::weighted_sum_backward(dy, {{source}, {source, gate, 1.0, true}}, shape.sequence_length);
    const Matrix both = reference::plus(expected[0].dsource, expected[1].dsource);
    sweep(std::tuple{kBoth}, [&](bool accumulate) {
        check([&](Harness& h) -> Checks {
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
            return {{ds, added(accumulate, both, before), "ds", few_operations(dtype())},
                    {dgate, expected[1].dcoefficient, "dgate", cancelling(48)}};
        });
    });
}

// Values that a shift does not use are arbitrary: the last row of each sequence, the coefficient of the
// first.
TEST_P(WeightedSumTest, ShiftStaysWithinSequence) {
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
    const std::vector<reference::WeightedTerm> expected = {{source, c, 1.0, true},
                                                           {source, number, 1.0, true}};
    const auto of_terms = reference::weighted_sum_backward(dy, expected, length);
    check([&](Harness& h) -> Checks {
        const Tensor s = h.input(source, dtype()), y = h.output(dtype(), {rows, cols});
        const WeightedTerms terms = {
            {{.source = s, .coefficient = h.input(c, DType::f32), .shifted = true},
             {.source = s, .coefficient = h.input(number, DType::f32, {1}), .shifted = true}}};
        h.call(op::WeightedSumForward{.y = y, .terms = terms, .sequence_length = length});
        Checks checks = {
            {y, reference::weighted_sum_forward(expected, length), "y", few_operations(dtype())}};
        TermGradients gradients{};
        for (size_t j = 0; j < 2; ++j) {
            TermGradient& g = gradients[j];
            g.dsource = h.output(dtype(), {rows, cols});
            g.dcoefficient = j == 0 ? h.output(DType::f32, {rows, 1}) : h.output(DType::f32, {1});
            checks.push_back({g.dsource, of_terms[j].dsource, "ds", few_operations(dtype())});
            checks.push_back(
                {g.dcoefficient, of_terms[j].dcoefficient, "dc", cancelling(j == 0 ? cols : rows * cols)});
        }
        h.call(op::WeightedSumBackward{
            .gradients = gradients, .dy = h.input(dy, dtype()), .terms = terms, .sequence_length = length});
        return checks;
    });
}

}  // namespace speedrun::testing::weighted_sum_test
