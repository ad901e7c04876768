// Epilogues of matmuls. A separate matmul with the same operands gives r, which MatmulTest and Fp8Test check; the epilogue is
// compared with its formula in float64.
#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::epilogue_test {

SPEEDRUN_OP_TEST_ON(EpilogueTest, wgmma_backends());

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Sizes {
    int64_t m, n, k;
};
// K of 1,040: the matmul sums in parts.
constexpr Sizes kSizes[] = {{1, 48, 96}, {7, 33, 48}, {130, 272, 64}, {64, 72, 1040}};

// Multiples of a half, most of them below 4: their sums of products are exact in f32, in any order.
Matrix halves(int64_t rows, int64_t cols, uint64_t seed) {
    Matrix x = random_matrix(rows, cols, seed, DType::f32);
    for (double& value : x.values) value = std::round(2 * value) / 2;
    return x;
}

struct Problem {
    Sizes sizes;
    DType dtype;
    Matrix a, b, bias;
    Problem(Sizes of, DType type)
        : sizes(of),
          dtype(type),
          a(halves(of.m, of.k, 1)),
          b(halves(of.n, of.k, 2)),
          bias(halves(1, of.n, 3)) {}

    // c = epilogue(a bᵀ (+ bias)), transposed as told; its rows among others with a margin.
    op::Matmul product(Harness& h, bool transpose_a, bool with_bias, Margin margin = {}) const {
        return {.c = h.output(Matrix(sizes.m, sizes.n), dtype, margin),
                .a = h.input(transpose_a ? reference::transposed(a) : a, dtype, margin),
                .b = h.input(b, dtype, margin),
                .bias = with_bias ? h.input(bias, DType::f32, {sizes.n}) : Tensor(),
                .transpose_a = transpose_a,
                .transpose_b = true};
    }
};

std::string name_of(const Sizes& s) {
    return fmt::format("{} x {} x {}", s.m, s.n, s.k);
}

// relu(r)², rounded to the type.
Matrix squared(const Matrix& r, DType dtype) {
    return rounded(reference::activation_forward(r, Activation::relu_squared), dtype);
}

Matrix quantized(const Matrix& x, float scale) {
    Matrix result = x;
    for (double& value : result.values)
        value = reference::fp8(static_cast<float>(value) * (1 / scale), DType::e4m3);
    return result;
}

double largest(const Matrix& x) {
    double most = 0;
    for (const double value : x.values) most = std::max(most, value);
    return most;
}

// Compares values: zeros of both signs are equal, as are NaNs.
void expect_same(const Matrix& actual, const Matrix& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (int64_t i = 0; i < actual.size(); ++i)
        ASSERT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
            << i << ": " << actual[i] << ", not " << expected[i];
}

TEST_P(EpilogueTest, SquaresTheRoundedProduct) {
    for (const Sizes& sizes : kSizes) {
        const Problem problem(sizes, dtype());
        sweep(std::tuple{kBoth, kBoth}, [&](bool with_bias, bool strided) {
            const bool transpose_a = strided;
            SCOPED_TRACE(name_of(sizes));
            const Margin margin = strided ? Margin{16, 16} : Margin();
            const Matrix r = run([&](Harness& h) -> Outputs {
                const op::Matmul product = problem.product(h, transpose_a, with_bias, margin);
                h.call(product);
                return {h.read(product.c)};
            })[0];
            check([&](Harness& h) -> Checks {
                op::Matmul product = problem.product(h, transpose_a, with_bias, margin);
                product.epilogue.relu_squared = true;
                h.call(product);
                return {{product.c, squared(r, dtype()), "relu²", Tolerance{}}};
            });
        });
    }
}

// The root of relu² is the derivative's factor: exact in f32, off by half of bf16's rounding otherwise.
TEST_P(EpilogueTest, MultipliesByTheRoot) {
    for (const Sizes& sizes : kSizes) {
        const Problem problem(sizes, dtype());
        const Matrix x = random_matrix(sizes.m, sizes.n, 5, dtype()), y = squared(x, dtype());
        sweep(std::tuple{kBoth}, [&](bool strided) {
            const bool transpose_a = strided;
            SCOPED_TRACE(name_of(sizes));
            const Margin margin = strided ? Margin{16, 16} : Margin();
            const Matrix r = run([&](Harness& h) -> Outputs {
                const op::Matmul product = problem.product(h, transpose_a, false, margin);
                h.call(product);
                return {h.read(product.c)};
            })[0];
            Matrix expected = r;
            for (int64_t i = 0; i < r.size(); ++i) expected[i] *= 2 * std::sqrt(y[i]);
            check([&](Harness& h) -> Checks {
                op::Matmul product = problem.product(h, transpose_a, false, margin);
                product.epilogue.squares = h.input(y, dtype(), margin);
                h.call(product);
                Checks checks{{product.c, expected, "dx", few_operations(dtype())}};
                if (dtype() == DType::f32)
                    checks.push_back(
                        {product.c,
                         rounded(reference::activation_backward(r, x, Activation::relu_squared), DType::f32),
                         "dx of x", Tolerance{}});
                return checks;
            });
        });
    }
}

// The root of an f32 square is exact if the square is normal and finite. Below |x| = 2^-63 the square loses bits; below 2^-75
// it is 0.
TEST_P(EpilogueTest, RootOfSquareIsExact) {
    Matrix x(1, 4096);
    for (int64_t i = 0; i < x.size(); ++i) {
        const double mantissa = 1 + static_cast<double>(i * 2047 % 8388608) * 0x1p-23;
        x[i] = std::ldexp(mantissa, static_cast<int>(i % 126) - 63);
    }
    x = rounded(x, DType::f32);
    const auto slope = [&](const Matrix& of) {
        return run([&](Harness& h) -> Outputs {
            const Tensor dx = h.output(DType::f32, {1, of.cols}), y = h.output(DType::f32, {1, of.cols});
            h.call(op::ActivationForward{
                .y = y, .x = h.input(of, DType::f32), .activation = Activation::relu_squared});
            h.call(op::ActivationBackward{.dx = dx,
                                          .dy = h.input(Matrix(1, of.cols, 1.0), DType::f32),
                                          .saved = y,
                                          .activation = Activation::relu_squared});
            return {h.read(dx)};
        })[0];
    };
    if (dtype() != DType::f32) return;
    expect_same_bits(
        slope(x), reference::activation_backward(Matrix(1, x.cols, 1.0), x, Activation::relu_squared), "2x");
    Matrix tiny(1, 2);
    tiny.values = {0x1.8p-76, 0x1.234568p-70};
    const Matrix lost = slope(tiny);
    EXPECT_EQ(lost[0], 0);
    EXPECT_NE(lost[1], 2 * tiny[1]);
    EXPECT_NEAR(lost[1], 2 * tiny[1], 0x1p-8 * tiny[1]);
}

// NaN and infinities reach c, amax and the FP8 form.
TEST_P(EpilogueTest, QuantizesTheSquare) {
    for (const Sizes& sizes : kSizes) {
        sweep(std::tuple{kBoth, kBoth}, [&](bool with_nan, bool strided) {
            const bool constant = strided;
            SCOPED_TRACE(name_of(sizes));
            Problem problem(sizes, dtype());
            if (with_nan) problem.a[0] = kNan;
            const Margin margin = strided ? Margin{16, 16} : Margin();
            const float scale = 0.37f;
            const Matrix y = run([&](Harness& h) -> Outputs {
                op::Matmul product = problem.product(h, false, false, margin);
                product.epilogue.relu_squared = true;
                h.call(product);
                return {h.read(product.c)};
            })[0];
            const Outputs out = run([&](Harness& h) -> Outputs {
                op::Matmul product = problem.product(h, false, false, margin);
                product.epilogue = {.relu_squared = true,
                                    .quantized = h.output(y, DType::e4m3, margin),
                                    .scale = constant ? h.output(DType::f32, {1})
                                                      : h.input(Matrix(1, 1, scale), DType::f32, {1}),
                                    .constant = constant ? scale : 0,
                                    .amax = h.inout(Matrix(1, 1, 0.5), DType::f32, {1})};
                h.call(product);
                return {h.read(product.c), h.read(product.epilogue.quantized), h.read(product.epilogue.amax),
                        h.read(product.epilogue.scale)};
            });
            expect_same(out[0], y);
            expect_same(out[1], quantized(y, scale));
            if (with_nan)
                EXPECT_TRUE(std::isnan(out[2][0]));
            else
                EXPECT_EQ(out[2][0], std::max(0.5, largest(y)));
            EXPECT_EQ(out[3][0], static_cast<double>(scale));
        });
    }
}

// FP8 matmuls have the same epilogues.
TEST_P(EpilogueTest, OfScaledMatmul) {
    for (const Sizes& sizes : {Sizes{1, 48, 96}, {33, 16, 64}, {130, 272, 96}, {16, 16, 16}}) {
        SCOPED_TRACE(name_of(sizes));
        const Matrix a = halves(sizes.m, sizes.k, 1), b = halves(sizes.n, sizes.k, 2),
                     before = squared(random_matrix(sizes.m, sizes.n, 3, dtype()), dtype());
        const float scale = 0.37f;
        const auto product = [&](Harness& h) {
            return op::ScaledMatmul{.c = h.output(dtype(), {sizes.m, sizes.n}),
                                    .a = h.input(a, DType::e4m3),
                                    .b = h.input(b, DType::e4m3),
                                    .scale_a = h.input(Matrix(1, 1, 0.5), DType::f32, {1}),
                                    .scale_b = h.input(Matrix(1, 1, 0.75), DType::f32, {1})};
        };
        const Matrix r = run([&](Harness& h) -> Outputs {
            const op::ScaledMatmul separate = product(h);
            h.call(separate);
            return {h.read(separate.c)};
        })[0];
        const Matrix y = squared(r, dtype());
        check([&](Harness& h) -> Checks {
            op::ScaledMatmul squares = product(h);
            squares.epilogue = {.relu_squared = true,
                                .quantized = h.output(DType::e4m3, {sizes.m, sizes.n}),
                                .scale = h.input(Matrix(1, 1, scale), DType::f32, {1}),
                                .amax = h.inout(Matrix(1, 1, 0), DType::f32, {1})};
            h.call(squares);
            return {{squares.c, y, "relu²", Tolerance{}},
                    {squares.epilogue.quantized, quantized(y, scale), "quantized", Tolerance{}},
                    {squares.epilogue.amax, Matrix(1, 1, largest(y)), "amax"}};
        });
        const Matrix addend = random_matrix(sizes.m, sizes.n, 4, dtype());
        Matrix sum = reference::plus(reference::matmul(a, reference::transposed(b)), addend);
        for (int64_t i = 0; i < sum.size(); ++i) sum[i] -= 0.625 * (sum[i] - addend[i]);
        check([&](Harness& h) -> Checks {
            op::ScaledMatmul added = product(h);
            added.addend = h.input(addend, dtype());
            h.call(added);
            return {{added.c, sum, "c + addend", reduction(dtype(), sizes.k)}};
        });
        Matrix gradient = r;
        for (int64_t i = 0; i < r.size(); ++i) gradient[i] *= 2 * std::sqrt(before[i]);
        check([&](Harness& h) -> Checks {
            op::ScaledMatmul backward = product(h);
            backward.epilogue.squares = h.input(before, dtype());
            h.call(backward);
            return {{backward.c, gradient, "dx", few_operations(dtype())}};
        });
    }
}

// In f32 the addend is added last: c has the bits of the matmul and an addition. K of 1,040: in pieces on CPUs.
TEST_P(EpilogueTest, AddendHasTheBitsOfAnAddition) {
    if (dtype() != DType::f32) return;
    for (const Sizes& sizes : kSizes) {
        for (const bool with_bias : {false, true}) {
            SCOPED_TRACE(name_of(sizes));
            Problem problem(sizes, dtype());
            problem.a = random_matrix(sizes.m, sizes.k, 1, dtype());
            const Matrix addend = random_matrix(sizes.m, sizes.n, 4, dtype());
            const auto sums = [&](bool fused) {
                return run([&](Harness& h) -> Outputs {
                    op::Matmul product = problem.product(h, false, with_bias);
                    const Tensor x = h.input(addend, dtype());
                    if (fused) product.addend = x;
                    h.call(product);
                    if (fused) return {h.read(product.c)};
                    const Tensor sum = h.output(dtype(), {sizes.m, sizes.n});
                    h.call(op::Add{.y = sum, .x = x, .z = product.c});
                    return {h.read(sum)};
                })[0];
            };
            expect_same(sums(true), sums(false));
        }
    }
}

// c = a b + addend, rounded once; the addend stays.
TEST_P(EpilogueTest, AddsTheAddend) {
    for (const Sizes& sizes : kSizes) {
        sweep(std::tuple{kBoth, kBoth}, [&](bool with_bias, bool strided) {
            const bool transpose_a = strided;
            SCOPED_TRACE(name_of(sizes));
            const Problem problem(sizes, dtype());
            const Margin margin = strided ? Margin{16, 16} : Margin();
            const Matrix addend = random_matrix(sizes.m, sizes.n, 4, dtype());
            Matrix expected =
                reference::plus(reference::matmul(problem.a, reference::transposed(problem.b)), addend);
            for (int64_t i = 0; with_bias && i < expected.size(); ++i)
                expected[i] += problem.bias[i % sizes.n];
            check([&](Harness& h) -> Checks {
                op::Matmul product = problem.product(h, transpose_a, with_bias, margin);
                product.addend = h.input(addend, dtype(), margin);
                h.call(product);
                return {{product.c, expected, "c", reduction(dtype(), sizes.k)}};
            });
        });
    }
}

}  // namespace speedrun::testing::epilogue_test
