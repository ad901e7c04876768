// The product with a SiLU against float64: forward, backward, extreme values and refused shapes.
#include <cmath>
#include <limits>

#include "tests/kernels/op_checks.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::silu_product_test {

SPEEDRUN_OP_TEST(SiluProductTest);

double logistic(double x) {
    return 1 / (1 + std::exp(-x));
}
Matrix forward(const Matrix& gate, const Matrix& x) {
    Matrix y = x;
    for (size_t i = 0; i < y.values.size(); ++i) y[i] *= gate[i] * logistic(gate[i]);
    return y;
}
struct Gradients {
    Matrix dgate, dx;
};
Gradients backward(const Matrix& dy, const Matrix& gate, const Matrix& x) {
    Gradients gradients{dy, dy};
    for (size_t i = 0; i < dy.values.size(); ++i) {
        const double s = logistic(gate[i]);
        gradients.dgate[i] *= x[i] * (s + gate[i] * s * (1 - s));
        gradients.dx[i] *= gate[i] * s;
    }
    return gradients;
}
// The exponential has a relative error of some 1e-6 at most. Near -1.28 the slope of SiLU vanishes.
Tolerance tolerance_of(DType dtype) {
    Tolerance tolerance = few_operations(dtype);
    tolerance.absolute = 2e-6;
    return tolerance;
}

// The reference's gradients are the differences of its values.
TEST(SiluProductReferenceTest, GradientsAreDifferences) {
    const Matrix gate = random_matrix(3, 5, 1, DType::f32, 2.0), x = random_matrix(3, 5, 2, DType::f32),
                 dy = random_matrix(3, 5, 3, DType::f32);
    const Gradients gradients = backward(dy, gate, x);
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < dy.values.size(); ++i) {
        const auto slope = [&](double step_of_gate, double step_of_x) {
            Matrix above = gate, below = gate, x_above = x, x_below = x;
            above[i] += step_of_gate, below[i] -= step_of_gate;
            x_above[i] += step_of_x, x_below[i] -= step_of_x;
            return dy[i] * (forward(above, x_above)[i] - forward(below, x_below)[i]) / (2 * kStep);
        };
        EXPECT_NEAR(gradients.dgate[i], slope(kStep, 0), 1e-9);
        EXPECT_NEAR(gradients.dx[i], slope(0, kStep), 1e-9);
    }
}

TEST_P(SiluProductTest, Forward) {
    for (const int64_t rows : {1, 7, 33, 130}) {
        for (const int64_t cols : {48, 96, 33}) {
            SCOPED_TRACE(fmt::format("T={} C={}", rows, cols));
            const Matrix gate = random_matrix(rows, cols, 1, dtype(), 2.0),
                         x = random_matrix(rows, cols, 2, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor y = h.output(dtype(), {rows, cols});
                h.call(
                    op::SiluProductForward{.y = y, .gate = h.input(gate, dtype()), .x = h.input(x, dtype())});
                return {h.read(y)};
            });
            expect_close(out[0], forward(gate, x), tolerance_of(dtype()), "y");
        }
    }
}

TEST_P(SiluProductTest, Backward) {
    for (const bool in_place : {false, true}) {
        for (const int64_t rows : {1, 7, 33, 130}) {
            const int64_t cols = rows == 7 ? 33 : 48;
            SCOPED_TRACE(fmt::format("in_place={} T={} C={}", in_place, rows, cols));
            const Matrix gate = random_matrix(rows, cols, 1, dtype(), 2.0),
                         x = random_matrix(rows, cols, 2, dtype()),
                         dy = random_matrix(rows, cols, 3, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor upstream = in_place ? h.inout(dy, dtype()) : h.input(dy, dtype());
                const Tensor dgate = in_place ? upstream : h.output(dtype(), {rows, cols});
                const Tensor dx = h.output(dtype(), {rows, cols});
                h.call(op::SiluProductBackward{.dgate = dgate,
                                               .dx = dx,
                                               .dy = upstream,
                                               .gate = h.input(gate, dtype()),
                                               .x = h.input(x, dtype())});
                return {h.read(dgate), h.read(dx)};
            });
            const Gradients expected = backward(dy, gate, x);
            expect_close(out[0], expected.dgate, tolerance_of(dtype()), "dgate");
            expect_close(out[1], expected.dx, tolerance_of(dtype()), "dx");
        }
    }
}

// A NaN stays NaN: the loss reveals a diverged run.
TEST_P(SiluProductTest, ExtremeValues) {
    Matrix gate(1, 6), x(1, 6);
    gate.values = {0.0, -1e-30, 60.0, -100.0, -1e15, std::numeric_limits<double>::quiet_NaN()};
    x.values = std::vector<double>(6, 1.0);
    gate = rounded(gate, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.output(dtype(), {1, 6}), dgate = h.output(dtype(), {1, 6}),
                     dx = h.output(dtype(), {1, 6});
        h.call(op::SiluProductForward{.y = y, .gate = h.input(gate, dtype()), .x = h.input(x, dtype())});
        h.call(op::SiluProductBackward{.dgate = dgate,
                                       .dx = dx,
                                       .dy = h.input(x, dtype()),
                                       .gate = h.input(gate, dtype()),
                                       .x = h.input(x, dtype())});
        return {h.read(y), h.read(dgate), h.read(dx)};
    });
    for (const Matrix& result : out) EXPECT_TRUE(std::isnan(result[5]));
    const Gradients gradients = backward(x, gate, x);
    const Matrix expected[] = {forward(gate, x), gradients.dgate, gradients.dx};
    for (size_t i = 0; i < out.size(); ++i)
        for (size_t j = 0; j < 5; ++j)
            EXPECT_NEAR(out[i][j], expected[i][j], 1e-6 + kBf16Ulp * std::abs(expected[i][j])) << i << j;
}

SPEEDRUN_CHECKS_TEST(SiluProductChecksTest);

TEST_P(SiluProductChecksTest, RefusesOtherShapes) {
    const Tensor x = real({3, 48});
    refuse(op::SiluProductForward{.y = x, .gate = x, .x = real({3, 47})},
           {"silu_product x", "[3,47]", "[3,48]"});
    refuse(op::SiluProductBackward{.dgate = x, .dx = real({2, 48}), .dy = x, .gate = x, .x = x},
           {"silu_product dx", "[2,48]"});
}

}  // namespace speedrun::testing::silu_product_test
