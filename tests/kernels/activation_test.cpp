#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::activation_test {

SPEEDRUN_OP_TEST(ActivationTest);

constexpr std::array kActivations = {Activation::relu_squared, Activation::gelu_tanh, Activation::gelu_erf};

// The absolute error of a vectorized tanh or erf is about 2e-7; it dominates where 1 + tanh or 1 − tanh²
// nearly cancels. It enters gelu times |x|/2 < 4, its derivative times |x|·√(2/π)·(1 + 0.134x²) < 12 before
// the tail ends.
Tolerance tolerance_of(DType dtype, bool derivative) {
    Tolerance tolerance = few_operations(dtype);
    tolerance.absolute = derivative ? 1e-5 : 2e-6;
    return tolerance;
}

TEST_P(ActivationTest, Forward) {
    sweep(std::tuple{kActivations, Ints{1, 7, 33, 130}, Ints{48, 96, 33}}, [&](Activation activation,
                                                                               int64_t rows, int64_t cols) {
        const Matrix x = random_matrix(rows, cols, 1, dtype(), 2.0);
        check([&](Harness& h) -> Checks {
            const Tensor y = h.output(dtype(), {rows, cols});
            h.call(op::ActivationForward{.y = y, .x = h.input(x, dtype()), .activation = activation});
            return {{y, reference::activation_forward(x, activation), "y", tolerance_of(dtype(), false)}};
        });
    });
}

// Backward of relu² reads its rounded output. Its root takes the place of x.
TEST_P(ActivationTest, Backward) {
    sweep(std::tuple{kActivations, kBoth, Ints{1, 7, 33, 130}},
          [&](Activation activation, bool in_place, int64_t rows) {
              const int64_t cols = rows == 7 ? 33 : 48;
              Matrix x = random_matrix(rows, cols, 1, dtype(), 2.0), saved = x;
              const Matrix dy = random_matrix(rows, cols, 2, dtype());
              if (activation == Activation::relu_squared) {
                  saved = rounded(reference::activation_forward(x, activation), dtype());
                  for (int64_t i = 0; i < x.size(); ++i) x[i] = std::sqrt(saved[i]);
              }
              check([&](Harness& h) -> Checks {
                  const Tensor upstream = in_place ? h.inout(dy, dtype()) : h.input(dy, dtype());
                  const Tensor dx = in_place ? upstream : h.output(dtype(), {rows, cols});
                  h.call(op::ActivationBackward{
                      .dx = dx, .dy = upstream, .saved = h.input(saved, dtype()), .activation = activation});
                  return {{dx, reference::activation_backward(dy, x, activation), "dx",
                           tolerance_of(dtype(), true)}};
              });
          });
}

// For large x the cube in gelu's tanh overflows long before its value. NaN must stay NaN: the loss reveals a
// diverged run.
TEST_P(ActivationTest, ExtremeValues) {
    sweep(std::tuple{kActivations}, [&](Activation activation) {
        Matrix x(1, 6);
        x.values = {0.0, -1e-30, 60.0, -60.0, -1e15, std::numeric_limits<double>::quiet_NaN()};
        x = rounded(x, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.output(dtype(), {1, 6});
            h.call(op::ActivationForward{.y = y, .x = h.input(x, dtype()), .activation = activation});
            return {h.read(y)};
        });
        EXPECT_TRUE(std::isnan(out[0][5]));
        Matrix expected = reference::activation_forward(x, activation), actual = out[0];
        expected[5] = actual[5] = 0.0;
        expect_close(actual, expected, {tolerance_of(dtype(), false).relative, 0, 1e-6}, "y");
    });
}

}  // namespace speedrun::testing::activation_test
