// Covers: kernels/cpu/polar_express.cpp kernels/cuda/ops/polar_express.cu
#include <limits>

#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::muon_test {

SPEEDRUN_OP_TEST_ON(MuonTest, wgmma_backends());

const Ints kCounts = {1, 7, 33, 130, 20011};
constexpr MuonSchedule kSchedule{.learning_rate = 0.03f, .weight_decay = 1.2f};

// Lists of pieces: one of several blocks, an empty one, and more than a launch has.
constexpr int64_t kMany = 150;
int64_t count_of_piece(int64_t piece) {
    return piece == 3 ? 0 : piece % 7 == 0 ? 3000 : 8 + 4 * piece;
}

TEST_P(MuonTest, MomentumOfManyPieces) {
    check([&](Harness& h) -> Checks {
        Checks checks;
        op::MuonMomentum call{.pieces = {},
                              .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                              .mu = numbers_in(h, std::array{0.95f})};
        for (int64_t i = 0; i < kMany; ++i) {
            const int64_t count = count_of_piece(i);
            const auto seed = static_cast<uint64_t>(i);
            const Matrix grad = random_matrix(1, count, 2 * seed, DType::f32);
            Matrix momentum = random_matrix(1, count, 2 * seed + 1, DType::f32);
            call.pieces.push_back({.update = h.output(dtype(), {count}),
                                   .momentum = h.inout(momentum, DType::f32, {count}),
                                   .grad = h.input(grad, DType::f32, {count})});
            const Matrix update = reference::muon_momentum(momentum, grad, 0.25, 0.95f, true);
            checks.push_back({call.pieces.back().update, update, "update", few_operations(dtype())});
            checks.push_back({call.pieces.back().momentum, momentum, "momentum", few_operations(DType::f32)});
        }
        h.call(call);
        return checks;
    });
}

// Each piece has rates of its own.
TEST_P(MuonTest, ApplyToManyPieces) {
    check([&](Harness& h) -> Checks {
        Checks checks;
        op::MuonApply call{.pieces = {}, .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1})};
        for (int64_t i = 0; i < kMany; ++i) {
            const int64_t count = count_of_piece(i);
            const auto seed = static_cast<uint64_t>(i);
            Matrix master = random_matrix(1, count, 2 * seed, DType::f32);
            const Matrix update = random_matrix(1, count, 2 * seed + 1, dtype());
            const MuonSchedule schedule{.learning_rate = 0.01f * static_cast<float>(1 + i % 3),
                                        .weight_decay = 1.2f};
            call.pieces.push_back({.parameter = h.output(dtype(), {count}),
                                   .master = h.inout(master, DType::f32, {count}),
                                   .update = h.input(update, dtype(), {count}),
                                   .rates = numbers_in(h, muon_rates(schedule))});
            reference::muon_apply(master, update, schedule.learning_rate, schedule.weight_decay, false);
            checks.push_back({call.pieces.back().master, master, "master", few_operations(DType::f32)});
            checks.push_back({call.pieces.back().parameter, master, "parameter", few_operations(dtype())});
        }
        h.call(call);
        return checks;
    });
}

TEST_P(MuonTest, Momentum) {
    sweep(std::tuple{kCounts, kBoth}, [&](int64_t count, bool nesterov) {
        const Matrix grad = random_matrix(1, count, 1, DType::f32),
                     before = random_matrix(1, count, 2, DType::f32);
        Matrix momentum = before;
        const Matrix update = reference::muon_momentum(momentum, grad, 0.25, 0.95f, nesterov);
        check([&](Harness& h) -> Checks {
            const op::MuonMomentum::Piece piece{.update = h.output(dtype(), {count}),
                                                .momentum = h.inout(before, DType::f32, {count}),
                                                .grad = h.input(grad, DType::f32, {count})};
            h.call(op::MuonMomentum{.pieces = {piece},
                                    .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                    .mu = numbers_in(h, std::array{0.95f}),
                                    .nesterov = nesterov});
            return {{piece.update, update, "update", few_operations(dtype())},
                    {piece.momentum, momentum, "momentum", few_operations(DType::f32)}};
        });
    });
}

TEST_P(MuonTest, Apply) {
    sweep(std::tuple{kCounts, kBoth, std::array{DType::f32, DType::bf16}}, [&](int64_t count, bool cautious,
                                                                               DType update_type) {
        Matrix master = random_matrix(1, count, 1, DType::f32);
        const Matrix update = random_matrix(1, count, 2, update_type);
        const bool shared = dtype() == DType::f32 && count % 2 == 1;
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor w = h.inout(master, DType::f32, {count});
            const Tensor parameter = shared ? w : h.output(dtype(), {count});
            h.call(op::MuonApply{.pieces = {{.parameter = parameter,
                                             .master = w,
                                             .update = h.input(update, update_type, {count}),
                                             .rates = numbers_in(h, muon_rates(kSchedule))}},
                                 .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                 .cautious = cautious});
            return {h.read(parameter), h.read(w)};
        });
        reference::muon_apply(master, update, kSchedule.learning_rate, kSchedule.weight_decay, cautious);
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
            h.call(op::MuonMomentum{
                .pieces = {{.update = update, .momentum = momentum, .grad = h.input(nan, DType::f32, {33})}},
                .grad_scale = scale,
                .mu = numbers_in(h, std::array{0.95f})});
            const Tensor master = h.inout(start, DType::f32, {33}), p = h.inout(parameter, dtype(), {33});
            h.call(op::MuonApply{.pieces = {{.parameter = p,
                                             .master = master,
                                             .update = h.input(nan, dtype(), {33}),
                                             .rates = numbers_in(h, muon_rates(kSchedule))}},
                                 .grad_scale = scale,
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
    const Tensor matrices = h.inout(x, dtype, {b.n, b.rows, b.cols});
    op::PolarExpress a{.x = {matrices},
                       .workspace = h.output(dtype, {op::PolarExpress::workspace_size(b.n, b.rows, b.cols)})};
    EXPECT_EQ(a.epsilon, 1e-6f);
    a.epsilon = epsilon;
    h.call(a);
    return {h.read(matrices)};
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

// Batches of several shapes in one call have the bits of calls of their own.
TEST_P(MuonTest, PolarExpressOfSeveralShapes) {
    const std::vector<Batch> batches = {{2, 16, 96}, {1, 96, 16}, {3, 40, 40}, {0, 8, 16}, {1, 7, 48}};
    const auto matrices = [&](const Batch& b) {
        return random_matrix(b.n * b.rows, b.cols, static_cast<uint64_t>(b.rows), dtype(), 0.01);
    };
    const Outputs together = run([&](Harness& h) {
        op::PolarExpress call{.x = {}, .workspace = {}};
        for (const Batch& b : batches) call.x.push_back(h.inout(matrices(b), dtype(), {b.n, b.rows, b.cols}));
        call.workspace = h.output(dtype(), {op::PolarExpress::workspace_size(call.x)});
        h.call(call);
        Outputs out;
        for (const Tensor& x : call.x) out.push_back(h.read(x));
        return out;
    });
    for (size_t i = 0; i < batches.size(); ++i)
        expect_same_bits(together[i], run([&](Harness& h) {
                             return polar_express(h, batches[i], matrices(batches[i]), dtype());
                         })[0],
                         fmt::format("batch {}", i));
}

// A matrix of zeros (a parameter without gradient) stays zero: epsilon prevents 0/0.
TEST_P(MuonTest, PolarExpressOfZero) {
    const Batch b{1, 16, 48};
    const Outputs out = run([&](Harness& h) { return polar_express(h, b, Matrix(16, 48), dtype()); });
    for (double value : out[0].values) EXPECT_EQ(value, 0.0);
}

}  // namespace speedrun::testing::muon_test
