// Covers: kernels/cpu/polar_express.cpp kernels/cuda/ops/polar_express.cu
#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::muon_test {

SPEEDRUN_OP_TEST(MuonTest);

const Ints kCounts = {1, 7, 33, 130, 20011};

TEST_P(MuonTest, Momentum) {
    sweep(std::tuple{kCounts, kBoth}, [&](int64_t count, bool nesterov) {
        const Matrix grad = random_matrix(1, count, 1, DType::f32),
                     before = random_matrix(1, count, 2, DType::f32);
        Matrix momentum = before;
        const Matrix update = reference::muon_momentum(momentum, grad, 0.25, 0.95f, nesterov);
        check([&](Harness& h) -> Checks {
            const op::MuonMomentum a{.update = h.output(dtype(), {count}),
                                     .momentum = h.inout(before, DType::f32, {count}),
                                     .grad = h.input(grad, DType::f32, {count}),
                                     .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                     .mu = 0.95f,
                                     .nesterov = nesterov};
            h.call(a);
            return {{a.update, update, "update", few_operations(dtype())},
                    {a.momentum, momentum, "momentum", few_operations(DType::f32)}};
        });
    });
}

TEST_P(MuonTest, Apply) {
    sweep(std::tuple{kCounts, kBoth, std::array{DType::f32, DType::bf16}},
          [&](int64_t count, bool cautious, DType update_type) {
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
          });
}

TEST_P(MuonTest, NonFiniteScaleSkipsStep) {
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

Outputs polar_express(Harness& h, const Batch& b, const Matrix& x, DType dtype, float epsilon = 1e-6f) {
    op::PolarExpress a{.x = h.inout(x, dtype, {b.n, b.rows, b.cols}),
                       .workspace = h.output(dtype, {op::PolarExpress::workspace_size(b.n, b.rows, b.cols)})};
    EXPECT_EQ(a.epsilon, 1e-6f);
    a.epsilon = epsilon;
    h.call(a);
    return {h.read(a.x)};
}

// The error of each matrix, relative to its norm.
void expect_factors(const Matrix& actual, const Matrix& x, const Batch& b, float epsilon, double allowed) {
    for (int64_t i = 0; i < b.n; ++i) {
        const Matrix expected =
            reference::polar_express(reference::row_block(x, i * b.rows, b.rows), epsilon);
        const Matrix difference = reference::plus(reference::row_block(actual, i * b.rows, b.rows),
                                                  reference::times(expected, -1.0));
        EXPECT_LT(reference::norm(difference), allowed * reference::norm(expected));
    }
}

// f32: the iteration amplifies rounding errors along with the singular values, at most 8-fold for these
// well-conditioned matrices. bf16: b·A + c·A² nearly cancels a. So five rounded iterations leave a singular
// value anywhere in the band [0.858, 1.142] of the polynomials; its vectors stay. A wrong side or a wrong
// iterate would be an error of order 1. The f32 case checks the coefficients.
// With an epsilon of 300 the singular values stay where the polynomials are steep. The result is not
// orthogonal, and its norm depends on epsilon. bf16: five iterations, each rounded three times.
TEST_P(MuonTest, PolarExpress) {
    const bool narrow = dtype() == DType::bf16;
    for (const Batch& b : {Batch{1, 16, 96}, {2, 96, 16}, {3, 7, 48}, {1, 33, 130}, {1, 1, 5}}) {
        SCOPED_TRACE(fmt::format("[{},{},{}]", b.n, b.rows, b.cols));
        const Matrix x = random_matrix(b.n * b.rows, b.cols, 1, dtype(), 0.01);
        const Outputs out = run([&](Harness& h) { return polar_express(h, b, x, dtype()); });
        expect_factors(out[0], x, b, 1e-6f, narrow ? 0.25 : 1e-4);
    }
    for (const Batch& b : {Batch{2, 16, 96}, {1, 96, 16}}) {
        SCOPED_TRACE(fmt::format("[{},{},{}], epsilon 300", b.n, b.rows, b.cols));
        const Matrix x = random_matrix(b.n * b.rows, b.cols, 1, dtype(), 0.01);
        const Outputs out = run([&](Harness& h) { return polar_express(h, b, x, dtype(), 300.0f); });
        expect_factors(out[0], x, b, 300.0f, narrow ? 0.05 : 1e-4);
        const Matrix first = reference::row_block(x, 0, b.rows);
        EXPECT_LT(reference::norm(reference::polar_express(first, 300)),
                  0.7 * reference::norm(reference::polar_express(first)));
    }
}

// A matrix of zeros (a parameter without gradient) stays zero: epsilon prevents 0/0.
TEST_P(MuonTest, PolarExpressOfZero) {
    const Batch b{1, 16, 48};
    const Outputs out = run([&](Harness& h) { return polar_express(h, b, Matrix(16, 48), dtype()); });
    for (double value : out[0].values) EXPECT_EQ(value, 0.0);
}

}  // namespace speedrun::testing::muon_test
