#include "kernels/cuda/blocks/kernel_sizes.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::norm_test {

SPEEDRUN_OP_TEST(NormTest);

constexpr NormKind kKinds[] = {NormKind::rmsnorm, NormKind::layernorm};

struct Case {
    NormKind kind;
    bool has_gain, has_bias;
    int64_t rows, cols;

    Matrix gain() const { return has_gain ? random_matrix(1, cols, 3, DType::f32) : Matrix(); }
    Matrix bias() const { return has_bias ? random_matrix(1, cols, 4, DType::f32) : Matrix(); }
    bool has_mean() const { return kind == NormKind::layernorm; }
};

// Short rows; rows that fit a block's registers, longer ones and unaligned ones; sums of gains and biases over more chunks than a
// block has groups.
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const NormKind kind : kKinds) {
        for (const auto& [gain, bias] : {std::pair{false, false}, {true, false}, {true, true}})
            for (const int64_t rows : {1, 7, 33, 130})
                for (const int64_t cols : {48, 96, 33}) all.push_back({kind, gain, bias, rows, cols});
        for (const int64_t cols : {768, 1028, 1536, 2056, 2500, 1029})
            all.push_back({kind, true, false, 5, cols});
    }
    all.push_back({NormKind::layernorm, true, true, sizes::kColumnRows * (sizes::kChunkGroups + 5) + 3, 40});
    return all;
}

template <class Body>
void for_cases(const Body& body) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(fmt::format("{} gain={} bias={} T={} C={}", static_cast<int>(c.kind), c.has_gain,
                                 c.has_bias, c.rows, c.cols));
        body(c);
    }
}

Tensor vector_of(Harness& h, const Matrix& x) {
    return x.empty() ? Tensor() : h.input(x, DType::f32, {x.cols});
}

enum class Sum { absent, separate, in_place };

TEST_P(NormTest, Forward) {
    for_cases([&](const Case& c) {
        for (const Sum mode : {Sum::absent, Sum::separate, Sum::in_place}) {
            SCOPED_TRACE(static_cast<int>(mode));
            const Matrix x = random_matrix(c.rows, c.cols, 1, dtype()),
                         delta = random_matrix(c.rows, c.cols, 2, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor in = mode == Sum::in_place ? h.inout(x, dtype()) : h.input(x, dtype());
                op::NormForward a{.y = h.output(dtype(), {c.rows, c.cols}),
                                  .rstd = h.output(DType::f32, {c.rows}),
                                  .x = in,
                                  .gain = vector_of(h, c.gain()),
                                  .bias = vector_of(h, c.bias()),
                                  .kind = c.kind};
                if (c.has_mean()) a.mean = h.output(DType::f32, {c.rows});
                if (mode != Sum::absent) a.delta = h.input(delta, dtype());
                if (mode == Sum::in_place) a.sum = in;
                if (mode == Sum::separate) a.sum = h.output(dtype(), {c.rows, c.cols});
                h.call(a);
                return {h.read(a.y), h.read(a.rstd), c.has_mean() ? h.read(a.mean) : Matrix(),
                        mode == Sum::absent ? Matrix() : h.read(a.sum)};
            });
            Matrix s = x;
            if (mode != Sum::absent) {
                expect_close(out[3], reference::plus(x, delta), few_operations(dtype()), "sum");
                s = out[3];  // backward reads the sum as it was stored, so that is normed
            }
            const reference::NormForward expected = reference::norm_forward(s, c.gain(), c.bias(), c.kind);
            expect_close(out[0], expected.y, reduction(dtype(), c.cols), "y");
            // A sum of squares has no cancellation; the mean has, and is judged against values of size 1.
            expect_close(out[1], expected.rstd, reduction(DType::f32, c.cols), "rstd");
            if (c.has_mean()) expect_close(out[2], expected.mean, {0, 0, 16 * kF32Roundoff}, "mean");
        }
    });
}

// The bits of a separate maximum over y, whatever was there before. Columns past the end of a row do not count: there a
// layernorm would have the mean.
TEST_P(NormTest, LargestMagnitude) {
    for (const NormKind kind : kKinds) {
        for (const int64_t cols : {33, 48, 100, 768, 1029, 2056}) {
            for (const int64_t rows : {1, 7, 130}) {
                for (const bool nan : kBoth) {
                    SCOPED_TRACE(fmt::format("{} T={} C={} NaN={}", static_cast<int>(kind), rows, cols, nan));
                    Matrix x = random_matrix(rows, cols, 1, dtype());
                    for (double& value : x.values) value += 3.0;
                    if (nan) x(rows / 2, cols - 1) = std::nan("");
                    const Outputs out = run([&](Harness& h) -> Outputs {
                        const Tensor amax = h.inout(Matrix(1, 1, 1e30), DType::f32, {1}),
                                     apart = h.output(DType::f32, {1}), y = h.output(dtype(), {rows, cols});
                        op::NormForward a{.y = y,
                                          .rstd = h.output(DType::f32, {rows}),
                                          .amax = amax,
                                          .x = h.input(rounded(x, dtype()), dtype()),
                                          .kind = kind};
                        if (kind == NormKind::layernorm) a.mean = h.output(DType::f32, {rows});
                        h.call(a);
                        h.call(
                            op::NormTerm{.pieces = {{.out = apart, .x = y}}, .norm = VectorNorm::infinity});
                        return {h.read(amax), h.read(apart)};
                    });
                    EXPECT_EQ(std::isnan(out[0][0]), nan);
                    if (!nan) expect_same_bits(out[0], out[1], "amax");
                }
            }
        }
    }
}

// A mean far from 0 must not cost accuracy: the variance is of the differences from it. The error allowed is
// that of a mean which is itself rounded: 2⁻²⁴ · 64, relative to a deviation of 1, and few times that.
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

// Rows whose mean square is below, at and above the epsilon that is added to it.
TEST_P(NormTest, UsesEpsilonOfCall) {
    constexpr int64_t kRowsHere = 3, kColsHere = 48;
    sweep(std::tuple{std::to_array(kKinds), std::array{1.1920929e-7f, 1e-2f}},
          [&](NormKind kind, float epsilon) {
              Matrix x = random_matrix(kRowsHere, kColsHere, 1, dtype());
              for (int64_t t = 0; t < kRowsHere; ++t)
                  for (int64_t c = 0; c < kColsHere; ++c) x(t, c) *= std::pow(0.03125, t);
              x = rounded(x, dtype());
              const reference::NormForward expected = reference::norm_forward(x, {}, {}, kind, epsilon);
              check([&](Harness& h) -> Checks {
                  op::NormForward a{.y = h.output(dtype(), {kRowsHere, kColsHere}),
                                    .rstd = h.output(DType::f32, {kRowsHere}),
                                    .x = h.input(x, dtype()),
                                    .kind = kind,
                                    .epsilon = epsilon};
                  if (kind == NormKind::layernorm) a.mean = h.output(DType::f32, {kRowsHere});
                  h.call(a);
                  return {{a.y, expected.y, "y", reduction(dtype(), kColsHere)},
                          {a.rstd, expected.rstd, "rstd", reduction(DType::f32, kColsHere)}};
              });
          });
}

enum class Alias { none, dy, dresidual };

TEST_P(NormTest, Backward) {
    for_cases([&](const Case& c) {
        const Matrix s = random_matrix(c.rows, c.cols, 1, dtype()),
                     dy = random_matrix(c.rows, c.cols, 2, dtype()),
                     dresidual = random_matrix(c.rows, c.cols, 5, dtype()),
                     before = random_matrix(1, c.cols, 6, DType::f32);
        const reference::NormForward forward = reference::norm_forward(s, c.gain(), {}, c.kind);
        const reference::NormBackward expected = reference::norm_backward(dy, s, c.gain(), c.kind);
        sweep(std::tuple{std::array{Alias::none, Alias::dy, Alias::dresidual}, kBoth}, [&](Alias alias,
                                                                                           bool residual) {
            if (alias == Alias::dresidual && !residual) return;
            check([&](Harness& h) -> Checks {
                const auto sums = [&](bool given) {
                    if (!given) return Tensor();
                    return residual ? h.inout(before, DType::f32, {c.cols}) : h.output(DType::f32, {c.cols});
                };
                op::NormBackward a{.ds = {},
                                   .dgain = sums(c.has_gain),
                                   .dbias = sums(c.has_bias),
                                   .dy = alias == Alias::dy ? h.inout(dy, dtype()) : h.input(dy, dtype()),
                                   .s = h.input(s, dtype()),
                                   .mean = c.has_mean() ? vector_of(h, forward.mean) : Tensor(),
                                   .rstd = vector_of(h, forward.rstd),
                                   .gain = vector_of(h, c.gain()),
                                   .accumulate = residual,
                                   .kind = c.kind};
                if (residual)
                    a.dresidual =
                        alias == Alias::dresidual ? h.inout(dresidual, dtype()) : h.input(dresidual, dtype());
                a.ds = alias == Alias::dy          ? a.dy
                       : alias == Alias::dresidual ? a.dresidual
                                                   : h.output(dtype(), {c.rows, c.cols});
                h.call(a);
                const Tolerance of_rows = reduction(DType::f32, c.rows);
                return {{a.ds, added(residual, expected.ds, dresidual), "ds", reduction(dtype(), c.cols)},
                        {a.dgain, added(residual, expected.dgain, before), "dgain", of_rows},
                        {a.dbias, added(residual, expected.dbias, before), "dbias", of_rows}};
            });
        });
    });
}

}  // namespace speedrun::testing::norm_test
