#include <cmath>
#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::fp8_test {

SPEEDRUN_OP_TEST(Fp8Test);

constexpr std::array kTypes = {DType::e4m3, DType::e5m2};

// op::Quantize, element by element.
Matrix quantized(const Matrix& x, float scale, DType type) {
    Matrix result = x;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (double& value : result.values) value = reference::fp8(static_cast<float>(value) * inverse, type);
    return result;
}

Matrix scalar(float value) {
    return Matrix(1, 1, value);
}

struct Size {
    int64_t rows, cols;
};
// Results of a quantization: out, transposed, or both.
const Ints kResults = {1, 2, 3};

// Equal numbers, or two NaN.
void expect_same_numbers(const Matrix& actual, const Matrix& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (int64_t i = 0; i < actual.size(); ++i)
        ASSERT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
            << "element " << i << ": " << actual[i] << ", not " << expected[i];
}

// Every value of both types, midpoints between neighbors, values just next to midpoints, and values beyond
// the largest.
Matrix hard_numbers(DType real) {
    Matrix x(64, 96);
    for (int64_t i = 0; i < x.size(); ++i) {
        const auto index = static_cast<int>(i / 12 % 256);
        E4m3 a{};
        E5m2 b{};
        a.bits = b.bits = static_cast<uint8_t>(index);
        const double base = i % 2 == 0 ? static_cast<float>(a) : static_cast<float>(b);
        constexpr double kFactors[] = {1.0, 1.0 + 1.0 / 16, 1.0 + 1.0 / 32, 1.0 + 1.0 / 24, 1.5, 1.25};
        x[i] = std::isnan(base) ? 1.0 : base * kFactors[i / 2 % 6];
    }
    x[0] = INFINITY;
    x[1] = -INFINITY;
    x[2] = std::numeric_limits<double>::quiet_NaN();
    x[3] = 1e-30;
    x[4] = -std::ldexp(1.0, -10);  // half of the smallest e4m3 value: rounds to even, 0
    x[5] = std::ldexp(3.0, -10);
    x[6] = 463.9;
    x[7] = -1e30;
    return rounded(x, real);
}

TEST_P(Fp8Test, RoundsToNearestForEveryType) {
    const Matrix x = hard_numbers(dtype());
    sweep(std::tuple{kTypes, std::array{1.0f, 0.25f, 3.0f, 0.0f}}, [&](DType type, float scale) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor to = h.output(type, {x.rows, x.cols});
            h.call(op::Quantize{
                .out = to, .x = h.input(x, dtype()), .scale = h.input(scalar(scale), DType::f32, {1})});
            return {h.read(to)};
        });
        expect_same_numbers(out[0], quantized(x, scale, type));
    });
}

TEST_P(Fp8Test, WritesTransposedCopy) {
    for (const auto& [rows, cols] : {Size{64, 64}, {8, 200}, {136, 72}, {1, 7}, {33, 50}, {100, 64}}) {
        SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
        const Matrix x = random_matrix(rows, cols, 5, dtype());
        sweep(std::tuple{kTypes, kResults}, [&](DType type, int64_t which) {
            const Matrix expected = quantized(x, 0.7f, type);
            check([&](Harness& h) -> Checks {
                op::Quantize a{.x = h.input(x, dtype(), which == 2 ? Margin{8, 8} : Margin()),
                               .scale = h.input(scalar(0.7f), DType::f32, {1})};
                if (which & 1) a.out = h.output(type, {x.rows, x.cols});
                if (which & 2) a.transposed = h.output(type, {x.cols, x.rows});
                h.call(a);
                return {{a.out, expected, "out"},
                        {a.transposed, reference::transposed(expected), "transposed"}};
            });
        });
    }
}

TEST_P(Fp8Test, WritesConstantScale) {
    const Matrix x = random_matrix(70, 130, 5, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor to = h.output(DType::e4m3, {70, 130}), scale = h.output(DType::f32, {1});
        h.call(op::Quantize{.out = to, .x = h.input(x, dtype()), .scale = scale, .constant = 0.375f});
        return {h.read(to), h.read(scale)};
    });
    expect_same_bits(out[0], quantized(x, 0.375f, DType::e4m3), "out");
    EXPECT_EQ(out[1][0], 0.375f);
}

// The earlier maximum may be larger, and NaN is kept. Later steps see the recorded maximum, and zeros.
TEST_P(Fp8Test, RecordsAmaxForNextStep) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    struct Case {
        int64_t rows, cols;
        double before, last;
    };
    for (const Case& c : {Case{64, 64, 0, -9},
                          {130, 72, 8, 9},
                          {33, 50, 10.5, -9},
                          {1, 7, 0, nan},
                          {200, 130, 0, INFINITY}}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} before, with {}", c.rows, c.cols, c.before, c.last));
        Matrix x = random_matrix(c.rows, c.cols, 3, dtype());  // all below 8
        x[x.size() - 1] = c.last;
        const float scale = 0.25f, factor = 0.75f;
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor to = h.output(DType::e4m3, {c.rows, c.cols}), scales = h.output(DType::f32, {2});
            const Tensor amax = h.inout(Matrix(2, 1, c.before), DType::f32);
            const Tensor noted = amax.reshaped({2});
            h.call(op::Quantize{.out = to,
                                .x = h.input(x, dtype()),
                                .scale = h.input(scalar(scale), DType::f32, {1}),
                                .amax = amax.row_slice(1, 1).reshaped({1})});
            const Outputs read{h.read(to), h.read(amax)};
            h.call(op::RenewScales{
                .scales = scales, .amax = noted, .factors = h.input(Matrix(1, 2, factor), DType::f32, {2})});
            return {read[0], read[1], h.read(scales), h.read(amax)};
        });
        const double largest = std::isnan(c.last) ? c.last : std::max(c.before, std::abs(c.last));
        const auto same = [](double a, double b) { return std::isnan(b) ? std::isnan(a) : a == b; };
        EXPECT_EQ(out[1][0], c.before);
        EXPECT_TRUE(same(out[1][1], largest)) << out[1][1];
        EXPECT_EQ(out[2][0], factor * c.before);
        EXPECT_TRUE(same(out[2][1], factor * largest)) << out[2][1];
        EXPECT_EQ(out[3][0], 0);
        EXPECT_EQ(out[3][1], 0);
        const Matrix expected = quantized(x, scale, DType::e4m3);
        for (int64_t i = 0; i + 1 < x.size(); ++i) ASSERT_EQ(out[0][i], expected[i]) << i;
    }
}

struct Sizes {
    int64_t m, n, k;
};

TEST_P(Fp8Test, MatmulErrorIsOfSummationOnly) {
    constexpr Sizes kSizes[] = {{1, 48, 96},  {33, 16, 64},  {130, 272, 96},
                                {16, 16, 16}, {7, 40, 2064}, {144, 130, 144}};
    constexpr DType kPairs[][2] = {
        {DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}};
    const float scale_a = 0.37f, scale_b = 11.0f;
    for (const Sizes& sizes : kSizes) {
        for (const auto& types : kPairs) {
            SCOPED_TRACE(fmt::format("M={} N={} K={} {} {}", sizes.m, sizes.n, sizes.k, name_of(types[0]),
                                     name_of(types[1])));
            const Matrix a = random_matrix(sizes.m, sizes.k, 1, types[0]),
                         b = random_matrix(sizes.n, sizes.k, 2, types[1]),
                         before = random_matrix(sizes.m, sizes.n, 3, dtype()),
                         expected = reference::times(reference::matmul(a, reference::transposed(b)),
                                                     static_cast<double>(scale_a) * scale_b);
            sweep(std::tuple{kBoth}, [&](bool accumulate) {
                const Margin margin = accumulate ? Margin{16, 16} : Margin();
                check([&](Harness& h) -> Checks {
                    const Tensor c =
                        accumulate ? h.inout(before, dtype(), margin) : h.output(before, dtype(), margin);
                    h.call(op::ScaledMatmul{.c = c,
                                            .a = h.input(a, types[0], margin),
                                            .b = h.input(b, types[1]),
                                            .scale_a = h.input(scalar(scale_a), DType::f32, {1}),
                                            .scale_b = h.input(scalar(scale_b), DType::f32, {1}),
                                            .accumulate = accumulate});
                    // Products of FP8 values are exact in f32; sums, the scale and the result's type round.
                    return {{c, added(accumulate, expected, before), "c", reduction(dtype(), sizes.k)}};
                });
            });
        }
    }
}

TEST_P(Fp8Test, CountsFlops) {
    run([&](Harness& h) -> Outputs {
        const int64_t before = h.ops().flops();
        const Tensor one = h.input(scalar(1), DType::f32, {1});
        h.call(op::ScaledMatmul{.c = h.output(dtype(), {7, 33}),
                                .a = h.input(Matrix(7, 48), DType::e4m3),
                                .b = h.input(Matrix(33, 48), DType::e4m3),
                                .scale_a = one,
                                .scale_b = one});
        EXPECT_EQ(h.ops().flops() - before, 2 * 7 * 33 * 48);
        return {};
    });
}

}  // namespace speedrun::testing::fp8_test
