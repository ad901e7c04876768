// Fused sum and norm: forward and backward are bitwise equal to the separate operations.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::sum_norm_test {

SPEEDRUN_OP_TEST(SumNormTest);

enum class Per { none, all, row, head };
enum class Delta { none, separate, in_place };  // in_place: x + delta is stored in x
constexpr int64_t kHeads = 3;

struct Case {
    int64_t rows, cols;
    int terms;
    NormKind kind = NormKind::rmsnorm;
    bool affine = false;
    bool odd = false;       // rows are not aligned
    bool residual = false;  // backward
    bool adds = false;      // backward: adds to the outputs
    bool shifted = false;   // forward: the last term is shifted, and the first has one coefficient per head
    bool stores =
        false;         // backward: stores ds in dresidual, or in dy without it, and no dsource aliases these
    bool mix = false;  // all coefficients have one value; backward: no dsource aliases its input
    Delta delta = Delta::none;  // forward
    int odd_one = -1;           // the matrix, by its turn, that alone is not aligned
};

// Rows with partial vectors, longer than a warp's share, and longer than registers hold. Up to the largest number of
// terms with a kernel, and more.
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const int terms : {1, 2, 3, 5, 6, 8})
        for (const bool odd : {false, true})
            all.push_back({.rows = 33,
                           .cols = 96,
                           .terms = terms,
                           .odd = odd,
                           .residual = terms % 2 == 1,
                           .adds = terms > 2});
    for (const int64_t cols : {33, 48, 264, 768, 1032})
        all.push_back({.rows = 10,
                       .cols = cols,
                       .terms = 3,
                       .kind = NormKind::layernorm,
                       .affine = true,
                       .residual = true});
    all.push_back({.rows = 130, .cols = 48, .terms = 4, .affine = true, .adds = true});
    for (const int terms : {2, 5, 8})
        all.push_back({.rows = 10, .cols = 96, .terms = terms, .shifted = true});
    for (const int terms : {1, 2, 3})
        for (const int64_t cols : {33, 48, 768, 1032})
            for (const bool residual : {false, true})
                all.push_back({.rows = 10,
                               .cols = cols,
                               .terms = terms,
                               .odd = cols == 48 && terms == 3,
                               .residual = residual,
                               .stores = true});
    // Two terms have kernels for more lengths, and more rows than one round of blocks.
    for (const Delta delta : {Delta::none, Delta::separate, Delta::in_place}) {
        for (const auto& [rows, cols] :
             {std::pair{7, 33}, {130, 48}, {5, 768}, {5, 1028}, {5, 2048}, {5, 2056}, {5, 1029}, {8203, 8}})
            all.push_back({.rows = rows,
                           .cols = cols,
                           .terms = 2,
                           .residual = delta != Delta::none,
                           .adds = delta == Delta::in_place,
                           .mix = true,
                           .delta = delta});
        all.push_back({.rows = 10, .cols = 96, .terms = 3, .delta = delta});
    }
    for (int turn = 0; turn < 8; ++turn)
        all.push_back({.rows = 7,
                       .cols = 48,
                       .terms = 2,
                       .residual = true,
                       .mix = true,
                       .delta = Delta::separate,
                       .odd_one = turn});
    return all;
}

template <class Body>
void for_cases(const Body& body) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(
            fmt::format("{} x {}, {} terms, kind {} affine {} odd {} {} residual {} adds {} shifted "
                        "{} mix {} delta {}",
                        c.rows, c.cols, c.terms, static_cast<int>(c.kind), c.affine, c.odd, c.odd_one,
                        c.residual, c.adds, c.shifted, c.mix, static_cast<int>(c.delta)));
        body(c);
    }
}

Per per_of(const Case& c, int j) {
    if (c.shifted && j == 0) return Per::head;
    if (c.mix) return Per::all;
    constexpr Per kAll[] = {Per::all, Per::row, Per::all, Per::none};
    return kAll[j % 4];
}

// Operands of one call; fused and separate calls get equal ones.
struct Operands {
    const Case& c;
    DType dtype;
    Harness& h;
    mutable int turn = 0;

    Matrix values(int64_t rows, int64_t cols, uint64_t seed, DType type) const {
        return random_matrix(rows, cols, seed, type);
    }
    Tensor part(const Tensor& all) const {
        const bool odd = c.odd || turn++ == c.odd_one;
        return all.cols() == c.cols ? all : all.column_slice(odd ? 1 : 8, c.cols);
    }
    int64_t wide() const { return c.cols + (c.odd ? 3 : c.odd_one >= 0 ? 8 : 0); }
    Tensor input(uint64_t seed) const { return part(h.input(values(c.rows, wide(), seed, dtype), dtype)); }
    Tensor inout(uint64_t seed) const { return part(h.inout(values(c.rows, wide(), seed, dtype), dtype)); }
    Tensor vector(uint64_t seed) const {
        return c.affine ? h.input(values(1, c.cols, seed, DType::f32), DType::f32, {c.cols}) : Tensor();
    }
    Tensor mean(uint64_t seed) const {
        if (c.kind == NormKind::rmsnorm) return {};
        return h.inout(values(1, c.rows, seed, DType::f32), DType::f32, {c.rows});
    }
    WeightedTerms terms() const {
        WeightedTerms terms;
        for (int j = 0; j < c.terms; ++j) {
            const auto seed = static_cast<uint64_t>(100 + 10 * j);
            Tensor coefficient;
            const Per per = per_of(c, j);
            const int64_t columns = per == Per::head ? kHeads : 1;
            if (per == Per::all)
                coefficient = h.input(values(1, 1, seed + 1, DType::f32), DType::f32, {1});
            else if (per != Per::none)
                coefficient = h.input(values(c.rows, columns, seed + 1, DType::f32), DType::f32);
            terms[j] = {.source = input(seed),
                        .coefficient = coefficient,
                        .factor = j % 3 == 1 ? -0.5f : 1.0f,
                        .shifted = c.shifted && j == c.terms - 1};
        }
        return terms;
    }
};

TEST_P(SumNormTest, ForwardEqualsSeparateSumAndNorm) {
    for_cases([&](const Case& c) {
        const auto compute = [&](Harness& h, bool fused) -> Outputs {
            const Operands o{c, dtype(), h};
            op::SumNormForward a{.y = o.inout(1),
                                 .sum = o.inout(2),
                                 .mean = o.mean(3),
                                 .rstd = h.output(DType::f32, {c.rows}),
                                 .terms = o.terms(),
                                 .sequence_length = c.rows / 2 * 2 == c.rows ? c.rows / 2 : c.rows,
                                 .gain = o.vector(4),
                                 .bias = o.vector(5),
                                 .kind = c.kind,
                                 .epsilon = 0.25f};  // as large as the rows
            if (a.y.contiguous()) a.amax = h.output(DType::f32, {1});
            if (c.delta != Delta::none) {
                a.terms[0].source = o.inout(6);
                a.x = c.delta == Delta::in_place ? a.terms[0].source : o.input(7);
                a.delta = o.input(8);
            }
            if (fused) {
                h.call(a);
            } else {
                if (a.delta.present()) h.call(a.before());
                h.call(a.first());
                h.call(a.second());
            }
            return {h.read(a.y),
                    h.read(a.sum),
                    h.read(a.rstd),
                    a.mean.present() ? h.read(a.mean) : Matrix(),
                    h.read(a.terms[0].source),
                    a.amax.present() ? h.read(a.amax) : Matrix()};
        };
        const Outputs fused = run([&](Harness&h) { return compute(h, true); }),
                      apart = run([&](Harness&h) { return compute(h, false); }, {1});
        expect_same_bits(fused[0], apart[0], "y");
        expect_same_bits(fused[1], apart[1], "sum");
        expect_same_bits(fused[2], apart[2], "rstd");
        expect_same_bits(fused[3], apart[3], "mean");
        expect_same_bits(fused[4], apart[4], "source");
        expect_same_bits(fused[5], apart[5], "amax");
    });
}

// dsources: the first aliases dresidual or dy. The last two share a tensor, and the second of them adds to it.
TEST_P(SumNormTest, BackwardEqualsSeparateNormAndSum) {
    for_cases([&](const Case& c) {
        if (c.shifted) return;
        const auto compute = [&](Harness& h, bool fused) -> Outputs {
            const Operands o{c, dtype(), h};
            op::SumNormBackward a{.gradients = {},
                                  .dgain = {},
                                  .dbias = {},
                                  .dy = o.inout(1),
                                  .s = o.input(2),
                                  .terms = o.terms(),
                                  .mean = o.mean(3),
                                  .rstd = h.input(Matrix(1, c.rows, 0.7), DType::f32, {c.rows}),
                                  .gain = o.vector(4),
                                  .dresidual = {},
                                  .accumulate = c.adds,
                                  .kind = c.kind};
            if (c.residual) a.dresidual = o.inout(5);
            std::vector<Tensor> outputs;
            if (c.affine) {
                for (Tensor* const vector : {&a.dgain, &a.dbias}) {
                    *vector = h.inout(random_matrix(1, c.cols, 6, DType::f32), DType::f32, {c.cols});
                    outputs.push_back(*vector);
                }
            }
            for (int j = 0; j < c.terms; ++j) {
                TermGradient& g = a.gradients[j];
                const auto seed = static_cast<uint64_t>(200 + 10 * j);
                const Tensor& coefficient = a.terms[j].coefficient;
                g.accumulate_source = c.adds && j > 0;
                g.accumulate_coefficient = c.adds;
                if (j == 0 && !c.mix && !c.stores) {
                    g.dsource = c.residual ? a.dresidual : a.dy;
                } else if (j + 1 == c.terms && j > 1) {
                    g.dsource = a.gradients[j - 1].dsource;
                    g.accumulate_source = true;
                } else if (j % 4 != 2 || j + 2 == c.terms) {  // others are not requested
                    g.dsource = o.inout(seed);
                }
                if (coefficient.present() && j != 5) {
                    const Matrix before =
                        random_matrix(coefficient.rank == 1 ? 1 : c.rows, 1, seed + 1, DType::f32);
                    g.dcoefficient = coefficient.rank == 1 ? h.inout(before, DType::f32, {1})
                                                           : h.inout(before, DType::f32);
                    outputs.push_back(g.dcoefficient);
                }
                if (g.dsource.present()) outputs.push_back(g.dsource);
            }
            if (c.stores) {
                a.dsum = c.residual ? a.dresidual : a.dy;
                outputs.push_back(a.dsum);
            }
            if (fused) {
                h.call(a);
            } else {
                const Tensor ds = c.stores ? a.dsum : h.output(dtype(), {c.rows, c.cols});
                h.call(a.first(ds));
                h.call(a.second(ds));
            }
            Outputs read;
            for (const Tensor& tensor : outputs) read.push_back(h.read(tensor));
            return read;
        };
        const Outputs fused = run([&](Harness&h) { return compute(h, true); }),
                      apart = run([&](Harness&h) { return compute(h, false); }, {1});
        ASSERT_EQ(fused.size(), apart.size());
        // One unaligned matrix: the fused kernel sums rows in the order of unaligned ones, the norm alone need not.
        Tolerance of_order = reduction_of_rounded(dtype(), c.rows * c.cols);
        of_order.absolute = 1e-5 + (dtype() == DType::bf16 ? 0.02 : 0.0);
        for (size_t i = 0; i < fused.size(); ++i) {
            if (c.odd_one >= 0)
                expect_close(fused[i], apart[i], of_order, fmt::format("output {}", i));
            else
                expect_same_bits(fused[i], apart[i], fmt::format("output {}", i));
        }
    });
}

}  // namespace speedrun::testing::sum_norm_test
