// Gradients of sources that several weighted sums share, against float64 and against separate sums.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::shared_sources_test {

SPEEDRUN_OP_TEST(SharedSourcesTest);

// Rows with partial vectors, of several rounds of a warp, and in slices of wider tensors.
struct Shape {
    int64_t rows, cols;
    Margin margin = {};
};
const std::vector<Shape> kShapes = {{1, 1},   {7, 33},           {33, 48},       {10, 264},
                                    {5, 768}, {19, 96, {8, 16}}, {6, 40, {1, 1}}};

struct Random {
    Shape shape;
    DType dtype;

    Matrix real(uint64_t seed) const { return random_matrix(shape.rows, shape.cols, seed, dtype); }
    Matrix column(uint64_t seed) const { return random_matrix(shape.rows, 1, seed, DType::f32); }
};

// Sum l lacks source 1 if l % 3 == 2.
bool has_term(int l, int m) {
    return m == 0 || l % 3 != 2;
}
float factor_of(int l, int m) {
    return (l + m) % 2 == 0 ? 1.0f : -0.05f;
}

// Requests all gradients; every second coefficient adds with `accumulate`.
op::SharedSourcesBackward arguments(Harness& h, const Random& random, int sums, int sources,
                                    bool accumulate) {
    const auto seed = [](int base, int l, int m = 0) { return static_cast<uint64_t>(base + 2 * l + m); };
    const Margin margin = random.shape.margin;
    op::SharedSourcesBackward a{.sources = {}, .sums = {}};
    for (int m = 0; m < sources; ++m)
        a.sources[m] = {h.input(random.real(seed(100, m)), random.dtype, margin),
                        h.inout(random.real(seed(200, m)), random.dtype, margin), accumulate};
    for (int l = 0; l < sums; ++l) {
        a.sums[l].dy = h.input(random.real(seed(300, l)), random.dtype, margin);
        for (int m = 0; m < sources; ++m) {
            if (!has_term(l, m)) continue;
            a.sums[l].terms[m] = {h.input(random.column(seed(400, l, m)), DType::f32, Margin{1, 2}),
                                  h.inout(random.column(seed(500, l, m)), DType::f32, Margin{2, 1}),
                                  factor_of(l, m), accumulate && l % 2 == 0};
        }
    }
    return a;
}

TEST_P(SharedSourcesTest, MatchesReference) {
    for (const Shape& shape : kShapes) {
        for (const int sums : {1, 2, 5, 8}) {
            for (const int sources : {1, 2}) {
                for (const bool accumulate : kBoth) {
                    SCOPED_TRACE(fmt::format("{} x {}, {} sums, {} sources, adds {}", shape.rows, shape.cols,
                                             sums, sources, accumulate));
                    const Random random{shape, dtype()};
                    check([&](Harness& h) -> Checks {
                        const auto a = arguments(h, random, sums, sources, accumulate);
                        std::vector<Matrix> ds(static_cast<size_t>(sources));
                        Checks checks;
                        for (int m = 0; m < sources; ++m) {
                            const Matrix before = h.read(a.sources[m].dsource);
                            ds[m] = accumulate ? before : Matrix(shape.rows, shape.cols);
                        }
                        for (int l = 0; l < sums; ++l) {
                            for (int m = 0; m < sources; ++m) {
                                if (!has_term(l, m)) continue;
                                const SharedTerm& term = a.sums[l].terms[m];
                                const auto gradient = reference::weighted_sum_backward(
                                    h.read(a.sums[l].dy),
                                    {{h.read(a.sources[m].source), h.read(term.coefficient), term.factor}},
                                    shape.rows)[0];
                                ds[m] = reference::plus(ds[m], gradient.dsource);
                                const Matrix dc = h.read(term.dcoefficient);
                                checks.push_back({term.dcoefficient,
                                                  term.accumulate ? reference::plus(gradient.dcoefficient, dc)
                                                                  : gradient.dcoefficient,
                                                  fmt::format("dc {} {}", l, m), cancelling(shape.cols)});
                            }
                        }
                        for (int m = 0; m < sources; ++m)
                            checks.push_back({a.sources[m].dsource, ds[m], fmt::format("ds {}", m),
                                              few_operations(dtype())});
                        h.call(a);
                        return checks;
                    });
                }
            }
        }
    }
}

// In f32, where no sum is rounded before its last term: the bits of one weighted sum after the other.
TEST_P(SharedSourcesTest, EqualsSeparateSums) {
    if (dtype() != DType::f32) return;
    for (const Shape& shape : kShapes) {
        for (const bool accumulate : kBoth) {
            SCOPED_TRACE(fmt::format("{} x {}, adds {}", shape.rows, shape.cols, accumulate));
            const auto compute = [&](Harness& h, bool together) -> Outputs {
                const auto a = arguments(h, {shape, dtype()}, 8, 2, accumulate);
                if (together) {
                    h.call(a);
                } else {
                    for (int l = 0; l < 8; ++l) {
                        op::WeightedSumBackward apart{
                            .gradients = {}, .dy = a.sums[l].dy, .terms = {}, .sequence_length = shape.rows};
                        for (int m = 0; m < 2; ++m) {
                            if (!has_term(l, m)) continue;
                            const SharedTerm& term = a.sums[l].terms[m];
                            apart.terms[m] = {.source = a.sources[m].source,
                                              .coefficient = term.coefficient,
                                              .factor = term.factor};
                            apart.gradients[m] = {a.sources[m].dsource, term.dcoefficient,
                                                  accumulate || l > 0, term.accumulate};
                        }
                        h.call(apart);
                    }
                }
                Outputs read;
                for (const SharedSource& shared : a.sources) read.push_back(h.read(shared.dsource));
                for (const SharingSum& sum : a.sums)
                    for (const SharedTerm& term : sum.terms)
                        if (term.dcoefficient.present()) read.push_back(h.read(term.dcoefficient));
                return read;
            };
            const Outputs together = run([&](Harness&h) { return compute(h, true); }),
                          apart = run([&](Harness&h) { return compute(h, false); }, {1});
            for (size_t i = 0; i < together.size(); ++i)
                expect_same_bits(together[i], apart[i], fmt::format("output {}", i));
        }
    }
}

}  // namespace speedrun::testing::shared_sources_test
