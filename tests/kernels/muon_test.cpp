// Covers: kernels/cpu/polar_express.cpp kernels/cuda/ops/polar_express.cu
#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace muon_test {

SPEEDRUN_OP_TEST(MuonTest);

constexpr int64_t kCounts[] = {1, 7, 33, 130, 20011};

TEST_P(MuonTest, Momentum) {
    for (int64_t count : kCounts) {
        for (bool nesterov : {false, true}) {
            SCOPED_TRACE(fmt::format("n={} nesterov={}", count, nesterov));
            const Matrix grad = random_matrix(1, count, 1, DType::f32);
            Matrix momentum = random_matrix(1, count, 2, DType::f32);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor update = h.output(dtype(), {count}), b = h.inout(momentum, DType::f32, {count});
                h.call(op::MuonMomentum{.update = update,
                                        .momentum = b,
                                        .grad = h.input(grad, DType::f32, {count}),
                                        .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                        .mu = 0.95f,
                                        .nesterov = nesterov});
                return {h.read(update), h.read(b)};
            });
            const Matrix update = reference::muon_momentum(momentum, grad, 0.25, 0.95f, nesterov);
            expect_close(out[0], update, few_operations(dtype()), "update");
            expect_close(out[1], momentum, few_operations(DType::f32), "momentum");
        }
    }
}

TEST_P(MuonTest, Apply) {
    for (int64_t count : kCounts) {
        for (bool cautious : {false, true}) {
            for (DType update_type : {DType::f32, DType::bf16}) {
                SCOPED_TRACE(
                    fmt::format("n={} cautious={} update {}", count, cautious, name_of(update_type)));
                Matrix master = random_matrix(1, count, 1, DType::f32);
                const Matrix update = random_matrix(1, count, 2, update_type);
                const bool shared = dtype() == DType::f32 && count % 2 == 1;
                const Outputs out = run([&](Harness& h) -> Outputs {
                    const Tensor w = h.inout(master, DType::f32, {count});
                    const Tensor parameter = shared ? w : h.output(dtype(), {count});
                    h.call(op::MuonApply{.parameter = parameter,
                                         .master = w,
                                         .update = h.input(update, update_type, {count}),
                                         .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                         .learning_rate = 0.03f,
                                         .weight_decay = 1.2f,
                                         .cautious = cautious});
                    return {h.read(parameter), h.read(w)};
                });
                reference::muon_apply(master, update, 0.03f, 1.2f, cautious);
                expect_close(out[1], master, few_operations(DType::f32), "master");
                expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
            }
        }
    }
}

TEST_P(MuonTest, NothingChangesIfTheScaleIsNotFinite) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Matrix start = random_matrix(1, 33, 1, DType::f32), nan(1, 33, std::nan(""));
        const Matrix parameter = rounded(start, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor scale = h.input(Matrix(1, 1, bad), DType::f32, {1});
            const Tensor momentum = h.inout(start, DType::f32, {33}), update = h.output(dtype(), {33});
            h.call(op::MuonMomentum{.update = update,
                                    .momentum = momentum,
                                    .grad = h.input(nan, DType::f32, {33}),
                                    .grad_scale = scale,
                                    .mu = 0.95f});
            const Tensor master = h.inout(start, DType::f32, {33}), p = h.inout(parameter, dtype(), {33});
            h.call(op::MuonApply{.parameter = p,
                                 .master = master,
                                 .update = h.input(nan, dtype(), {33}),
                                 .grad_scale = scale,
                                 .learning_rate = 0.03f,
                                 .weight_decay = 1.2f,
                                 .cautious = true});
            return {h.read(update), h.read(momentum), h.read(master), h.read(p)};
        });
        EXPECT_EQ(reference::norm(out[0]), 0.0) << "the update becomes 0";
        expect_same_bits(out[1], start, "momentum");
        expect_same_bits(out[2], start, "master");
        expect_same_bits(out[3], parameter, "parameter");
    }
}

struct Batch {
    int64_t n, rows, cols;
};

TEST_P(MuonTest, Gram) {
    for (const Batch& b : {Batch{1, 16, 48}, {3, 33, 7}, {2, 7, 130}, {1, 96, 96}}) {
        SCOPED_TRACE(fmt::format("[{},{},{}]", b.n, b.rows, b.cols));
        const Matrix x = random_matrix(b.n * b.rows, b.cols, 1, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor a = h.output(dtype(), {b.n, b.rows, b.rows});
            h.call(op::Gram{.a = a, .x = h.input(x, dtype(), {b.n, b.rows, b.cols})});
            return {h.read(a)};
        });
        for (int64_t i = 0; i < b.n; ++i) {
            expect_close(reference::row_block(out[0], i * b.rows, b.rows),
                         reference::gram(reference::row_block(x, i * b.rows, b.rows)),
                         reduction(dtype(), b.cols), "a");
        }
    }
}

// f32: the iteration amplifies rounding errors along with the singular values, at most 8-fold for these
// well-conditioned matrices. bf16: b·A + c·A² nearly cancels a. So five rounded iterations leave a singular
// value anywhere in the band [0.858, 1.142] of the polynomials; its vectors stay. A wrong side or a wrong
// iterate would be an error of order 1. The f32 case checks the coefficients.
TEST_P(MuonTest, PolarExpress) {
    for (const Batch& b : {Batch{1, 16, 96}, {2, 96, 16}, {3, 7, 48}, {1, 33, 130}, {1, 1, 5}}) {
        SCOPED_TRACE(fmt::format("[{},{},{}]", b.n, b.rows, b.cols));
        const Matrix x = random_matrix(b.n * b.rows, b.cols, 1, dtype(), 0.01);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.inout(x, dtype(), {b.n, b.rows, b.cols});
            h.call(op::PolarExpress{
                .x = y,
                .workspace = h.output(dtype(), {op::PolarExpress::workspace_size(b.n, b.rows, b.cols)})});
            return {h.read(y)};
        });
        for (int64_t i = 0; i < b.n; ++i) {
            const Matrix expected = reference::polar_express(reference::row_block(x, i * b.rows, b.rows));
            const Matrix actual = reference::row_block(out[0], i * b.rows, b.rows);
            const double error = reference::norm(reference::plus(actual, reference::times(expected, -1.0)));
            EXPECT_LT(error, (dtype() == DType::bf16 ? 0.25 : 1e-4) * reference::norm(expected));
        }
    }
}

// With an epsilon this large the singular values stay where the polynomials are steep. The result is not
// orthogonal, and its norm depends on epsilon. bf16: five iterations, each rounded three times.
TEST_P(MuonTest, PolarExpressDividesByTheNormAndEpsilon) {
    for (const Batch& b : {Batch{2, 16, 96}, {1, 96, 16}}) {
        SCOPED_TRACE(fmt::format("[{},{},{}]", b.n, b.rows, b.cols));
        const float epsilon = 300.0f;
        const Matrix x = random_matrix(b.n * b.rows, b.cols, 1, dtype(), 0.01);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.inout(x, dtype(), {b.n, b.rows, b.cols});
            h.call(op::PolarExpress{
                .x = y,
                .workspace = h.output(dtype(), {op::PolarExpress::workspace_size(b.n, b.rows, b.cols)}),
                .epsilon = epsilon});
            return {h.read(y)};
        });
        for (int64_t i = 0; i < b.n; ++i) {
            const Matrix given = reference::row_block(x, i * b.rows, b.rows);
            const Matrix expected = reference::polar_express(given, epsilon);
            EXPECT_LT(reference::norm(expected), 0.7 * reference::norm(reference::polar_express(given)));
            const Matrix actual = reference::row_block(out[0], i * b.rows, b.rows);
            const double error = reference::norm(reference::plus(actual, reference::times(expected, -1.0)));
            EXPECT_LT(error, (dtype() == DType::bf16 ? 0.05 : 1e-4) * reference::norm(expected));
        }
    }
}

// A matrix of zeros (a parameter without gradient) stays zero: epsilon prevents 0/0.
TEST_P(MuonTest, PolarExpressOfZero) {
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.inout(Matrix(16, 48), dtype(), {1, 16, 48});
        h.call(op::PolarExpress{
            .x = y, .workspace = h.output(dtype(), {op::PolarExpress::workspace_size(1, 16, 48)})});
        return {h.read(y)};
    });
    for (double value : out[0].values) EXPECT_EQ(value, 0.0);
}

}  // namespace muon_test
}  // namespace speedrun::testing
