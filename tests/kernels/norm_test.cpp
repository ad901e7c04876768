#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace norm_test {

SPEEDRUN_OP_TEST(NormTest);

constexpr NormKind kKinds[] = {NormKind::rmsnorm, NormKind::layernorm};
constexpr int64_t kRows[] = {1, 7, 33, 130};
constexpr int64_t kCols[] = {48, 96, 33};

struct Affine {
    bool gain, bias;
};
constexpr Affine kAffine[] = {{false, false}, {true, false}, {true, true}};

enum class Sum { absent, separate, in_place };

TEST_P(NormTest, Forward) {
    for (NormKind kind : kKinds) {
        for (Affine affine : kAffine) {
            for (Sum mode : {Sum::absent, Sum::separate, Sum::in_place}) {
                for (int64_t rows : kRows) {
                    for (int64_t cols : kCols) {
                        SCOPED_TRACE(fmt::format("{} gain={} bias={} sum={} T={} C={}",
                                                 static_cast<int>(kind), affine.gain, affine.bias,
                                                 static_cast<int>(mode), rows, cols));
                        const Matrix x = random_matrix(rows, cols, 1, dtype()),
                                     delta = random_matrix(rows, cols, 2, dtype());
                        const Matrix gain = affine.gain ? random_matrix(1, cols, 3, DType::f32) : Matrix();
                        const Matrix bias = affine.bias ? random_matrix(1, cols, 4, DType::f32) : Matrix();
                        const bool with_mean = kind == NormKind::layernorm;
                        const Outputs out = run([&](Harness& h) -> Outputs {
                            const Tensor y = h.output(dtype(), {rows, cols}),
                                         rstd = h.output(DType::f32, {rows});
                            const Tensor mean = with_mean ? h.output(DType::f32, {rows}) : Tensor();
                            const Tensor in =
                                mode == Sum::in_place ? h.inout(x, dtype()) : h.input(x, dtype());
                            Tensor sum;
                            if (mode == Sum::in_place) sum = in;
                            if (mode == Sum::separate) sum = h.output(dtype(), {rows, cols});
                            h.call(op::NormForward{
                                .y = y,
                                .sum = sum,
                                .mean = mean,
                                .rstd = rstd,
                                .x = in,
                                .delta = mode == Sum::absent ? Tensor() : h.input(delta, dtype()),
                                .gain = affine.gain ? h.input(gain, DType::f32, {cols}) : Tensor(),
                                .bias = affine.bias ? h.input(bias, DType::f32, {cols}) : Tensor(),
                                .kind = kind});
                            return {h.read(y), h.read(rstd), with_mean ? h.read(mean) : Matrix(),
                                    mode == Sum::absent ? Matrix() : h.read(sum)};
                        });
                        Matrix s = x;
                        if (mode != Sum::absent) {
                            expect_close(out[3], reference::plus(x, delta), few_operations(dtype()), "sum");
                            // Backward reads the stored sum, so the norm must be that of the stored sum.
                            s = out[3];
                        }
                        const reference::NormForward expected = reference::norm_forward(s, gain, bias, kind);
                        expect_close(out[0], expected.y, reduction(dtype(), cols), "y");
                        // A sum of squares does not cancel. The mean does, so its tolerance is relative to values of
                        // size 1.
                        expect_close(out[1], expected.rstd, reduction(DType::f32, cols), "rstd");
                        if (with_mean) expect_close(out[2], expected.mean, {0, 0, 16 * kF32Roundoff}, "mean");
                    }
                }
            }
        }
    }
}

// A mean far from 0 must not cost accuracy: the variance sums squared differences from the mean. Tolerance: a few
// times the error of a rounded mean, 2⁻²⁴ · 64, relative to a deviation of 1.
TEST_P(NormTest, LayernormWithLargeMean) {
    if (dtype() != DType::f32) GTEST_SKIP() << "bf16 inputs are too coarse to show it";
    for (int64_t cols : {48, 33, 17}) {
        SCOPED_TRACE(fmt::format("C={}", cols));
        Matrix x = random_matrix(7, cols, 1, dtype());
        for (double& value : x.values) value += 64.0;
        x = rounded(x, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.output(dtype(), {7, cols}), mean = h.output(DType::f32, {7}),
                         rstd = h.output(DType::f32, {7});
            h.call(op::NormForward{
                .y = y, .mean = mean, .rstd = rstd, .x = h.input(x, dtype()), .kind = NormKind::layernorm});
            return {h.read(y), h.read(rstd)};
        });
        const reference::NormForward expected = reference::norm_forward(x, {}, {}, NormKind::layernorm);
        expect_close(out[0], expected.y, {16 * kF32Roundoff, 4 * 64 * kF32Roundoff}, "y");
        expect_close(out[1], expected.rstd, {64 * kF32Roundoff, 0}, "rstd");
    }
}

// Rows with a mean square below, near and above epsilon.
TEST_P(NormTest, EpsilonIsTheCalls) {
    for (const NormKind kind : kKinds) {
        for (const float epsilon : {1.1920929e-7f, 1e-2f}) {
            SCOPED_TRACE(fmt::format("{} epsilon={}", static_cast<int>(kind), epsilon));
            constexpr int64_t kRowsHere = 3, kColsHere = 48;
            Matrix x = random_matrix(kRowsHere, kColsHere, 1, dtype());
            for (int64_t t = 0; t < kRowsHere; ++t)
                for (int64_t c = 0; c < kColsHere; ++c) x(t, c) *= std::pow(0.03125, t);
            x = rounded(x, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor y = h.output(dtype(), {kRowsHere, kColsHere}),
                             rstd = h.output(DType::f32, {kRowsHere});
                h.call(op::NormForward{
                    .y = y,
                    .mean = kind == NormKind::layernorm ? h.output(DType::f32, {kRowsHere}) : Tensor(),
                    .rstd = rstd,
                    .x = h.input(x, dtype()),
                    .kind = kind,
                    .epsilon = epsilon});
                return {h.read(y), h.read(rstd)};
            });
            const reference::NormForward expected = reference::norm_forward(x, {}, {}, kind, epsilon);
            expect_close(out[0], expected.y, reduction(dtype(), kColsHere), "y");
            expect_close(out[1], expected.rstd, reduction(DType::f32, kColsHere), "rstd");
        }
    }
}

enum class Alias { none, dy, dresidual };

TEST_P(NormTest, Backward) {
    for (NormKind kind : kKinds) {
        for (Affine affine : kAffine) {
            for (Alias alias : {Alias::none, Alias::dy, Alias::dresidual}) {
                for (bool residual : {false, true}) {
                    for (int64_t rows : kRows) {
                        if (alias == Alias::dresidual && !residual) continue;
                        const int64_t cols = kCols[static_cast<size_t>(rows + residual) % std::size(kCols)];
                        const bool accumulate = residual;
                        SCOPED_TRACE(fmt::format("{} gain={} bias={} alias={} residual={} T={} C={}",
                                                 static_cast<int>(kind), affine.gain, affine.bias,
                                                 static_cast<int>(alias), residual, rows, cols));
                        const Matrix s = random_matrix(rows, cols, 1, dtype()),
                                     dy = random_matrix(rows, cols, 2, dtype());
                        const Matrix dresidual = random_matrix(rows, cols, 3, dtype());
                        const Matrix gain = affine.gain ? random_matrix(1, cols, 4, DType::f32) : Matrix();
                        const Matrix before = random_matrix(1, cols, 5, DType::f32);
                        const reference::NormForward forward = reference::norm_forward(s, gain, {}, kind);
                        const Outputs out = run([&](Harness& h) -> Outputs {
                            const Tensor upstream =
                                alias == Alias::dy ? h.inout(dy, dtype()) : h.input(dy, dtype());
                            Tensor above, ds = upstream;
                            if (residual) {
                                above = alias == Alias::dresidual ? h.inout(dresidual, dtype())
                                                                  : h.input(dresidual, dtype());
                            }
                            if (alias == Alias::dresidual) ds = above;
                            if (alias == Alias::none) ds = h.output(dtype(), {rows, cols});
                            const auto sums = [&](bool given) {
                                if (!given) return Tensor();
                                return accumulate ? h.inout(before, DType::f32, {cols})
                                                  : h.output(DType::f32, {cols});
                            };
                            const Tensor dgain = sums(affine.gain), dbias = sums(affine.bias);
                            h.call(op::NormBackward{
                                .ds = ds,
                                .dgain = dgain,
                                .dbias = dbias,
                                .dy = upstream,
                                .s = h.input(s, dtype()),
                                .mean = kind == NormKind::layernorm
                                            ? h.input(forward.mean, DType::f32, {rows})
                                            : Tensor(),
                                .rstd = h.input(forward.rstd, DType::f32, {rows}),
                                .gain = affine.gain ? h.input(gain, DType::f32, {cols}) : Tensor(),
                                .dresidual = above,
                                .accumulate = accumulate,
                                .kind = kind});
                            return {h.read(ds), affine.gain ? h.read(dgain) : Matrix(),
                                    affine.bias ? h.read(dbias) : Matrix()};
                        });
                        reference::NormBackward expected = reference::norm_backward(dy, s, gain, kind);
                        if (residual) expected.ds = reference::plus(expected.ds, dresidual);
                        if (accumulate) {
                            expected.dgain = reference::plus(expected.dgain, before);
                            expected.dbias = reference::plus(expected.dbias, before);
                        }
                        expect_close(out[0], expected.ds, reduction(dtype(), cols), "ds");
                        if (affine.gain)
                            expect_close(out[1], expected.dgain, reduction(DType::f32, rows), "dgain");
                        if (affine.bias)
                            expect_close(out[2], expected.dbias, reduction(DType::f32, rows), "dbias");
                    }
                }
            }
        }
    }
}

}  // namespace norm_test
}  // namespace speedrun::testing
