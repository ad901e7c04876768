#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace utilities_test {

SPEEDRUN_OP_TEST(UtilitiesTest);

constexpr int64_t kCounts[] = {1, 7, 33, 130, 100003};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST_P(UtilitiesTest, FillAndScale) {
    for (int64_t count : kCounts) {
        const Matrix x = random_matrix(1, count, 1, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor filled = h.output(dtype(), {count}), scaled = h.inout(x, dtype(), {count});
            h.call(op::Fill{.x = filled, .value = 0.3f});
            h.call(op::Scale{.x = scaled, .factor = -0.3f});
            return {h.read(filled), h.read(scaled)};
        });
        expect_same_bits(out[0], rounded(Matrix(1, count, 0.3f), dtype()), "fill");
        expect_close(out[1], reference::times(x, static_cast<double>(-0.3f)), few_operations(dtype()),
                     "scale");
    }
}

// Round to nearest even: ties, the largest finite value (which rounds to infinity), NaN, infinities, −0.
TEST_P(UtilitiesTest, CastRounds) {
    Matrix x = random_matrix(1, 100003, 1, DType::f32);
    const double special[] = {1.0 + 0x1p-8,
                              1.0 + 3 * 0x1p-8,
                              1.0 + 0x1p-8 + 0x1p-20,
                              std::numeric_limits<float>::max(),
                              kInfinity,
                              -kInfinity,
                              kNan,
                              -0.0,
                              0x1p-126};
    for (size_t i = 0; i < std::size(special); ++i) x.values[i] = special[i];
    for (int64_t count : {1, 7, 33, 130, 100003}) {
        const Matrix in = reference::column_block(x, 0, count);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.output(dtype(), {count}), back = h.output(DType::f32, {count});
            h.call(op::Cast{.out = y, .in = h.input(in, DType::f32, {count})});
            h.call(op::Cast{.out = back, .in = y});
            return {h.read(y), h.read(back)};
        });
        for (size_t part : {0, 1}) {
            Matrix actual = out[part], expected = rounded(in, dtype());
            for (int64_t i = 0; i < count; ++i) {  // NaN stays NaN; its payload does not matter
                if (std::isnan(expected[i]) && std::isnan(actual[i])) actual[i] = expected[i] = 0.0;
            }
            expect_same_bits(actual, expected, part ? "and back" : "cast");
        }
    }
}

// One addition of two values, or none, with rows that are and are not adjacent.
TEST_P(UtilitiesTest, Accumulates) {
    for (const int64_t rows : {1, 5}) {
        for (const int64_t cols : {1, 7, 96, 130}) {
            for (const bool accumulate : {false, true}) {
                SCOPED_TRACE(fmt::format("T={} C={} accumulate={}", rows, cols, accumulate));
                const Matrix wide = random_matrix(rows, cols + 8, 1, dtype()),
                             before = random_matrix(rows, cols + 8, 2, DType::f32),
                             x = reference::column_block(wide, 0, cols);
                const Outputs out = run([&](Harness& h) -> Outputs {
                    const Tensor sum = h.inout(before, DType::f32);
                    h.call(op::Accumulate{.sum = sum.column_slice(0, cols),
                                          .x = h.input(wide, dtype()).column_slice(0, cols),
                                          .accumulate = accumulate});
                    return {h.read(sum)};
                });
                Matrix expected = before;
                for (int64_t t = 0; t < rows; ++t)
                    for (int64_t i = 0; i < cols; ++i)
                        expected(t, i) = accumulate ? x(t, i) + before(t, i) : x(t, i);
                expect_same_bits(out[0], rounded(expected, DType::f32), "sum");
            }
        }
    }
}

TEST_P(UtilitiesTest, Sums) {
    for (int64_t count : kCounts) {
        for (bool accumulate : {false, true}) {
            SCOPED_TRACE(fmt::format("n={} accumulate={}", count, accumulate));
            const Matrix f32 = random_matrix(1, count, 2, DType::f32);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor sum =
                    accumulate ? h.inout(Matrix(1, 1, 2.5), DType::f32, {1}) : h.output(DType::f32, {1});
                h.call(op::Sum{.out = sum, .x = h.input(f32, DType::f32, {count}), .accumulate = accumulate});
                return {h.read(sum)};
            });
            double expected = accumulate ? 2.5 : 0.0;
            for (double value : f32.values) expected += value;
            // The sum may nearly cancel: compared relative to its typical size √n, as reduction() does for
            // rows.
            const double terms = static_cast<double>(count);
            expect_close(out[0], Matrix(1, 1, expected), {16 * kF32Roundoff, 0, 8 * terms * kF32Roundoff},
                         "sum");
        }
    }
}

TEST_P(UtilitiesTest, CountNonfinite) {
    for (int64_t count : kCounts) {
        Matrix x = random_matrix(1, count, 1, dtype());
        double expected = 0.0;
        const double bad[] = {kNan, kInfinity, -kInfinity};
        for (int64_t i = 0; i < count; i += 5) {
            x[i] = bad[i % 3];
            ++expected;
        }
        if (count > 3) x[3] = static_cast<float>(Bf16(3e38f));  // large but finite
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor result = h.output(DType::f32, {1}), none = h.output(DType::f32, {1});
            h.call(op::CountNonfinite{.out = result, .x = h.input(x, dtype(), {count})});
            h.call(op::CountNonfinite{.out = none, .x = h.input(Matrix(1, count, 1.0), dtype(), {count})});
            return {h.read(result), h.read(none)};
        });
        EXPECT_EQ(out[0][0], expected) << "n=" << count;
        EXPECT_EQ(out[1][0], 0.0);
    }
}

constexpr VectorNorm kNorms[] = {VectorNorm::one, VectorNorm::two, VectorNorm::three, VectorNorm::infinity};

TEST_P(UtilitiesTest, NormTerms) {
    for (const VectorNorm norm : kNorms) {
        for (int64_t count : kCounts) {
            SCOPED_TRACE(fmt::format("norm {} n={}", static_cast<int>(norm), count));
            const Matrix x = random_matrix(1, count, 1, dtype());
            // Detects a NaN or an infinity at any index, of either sign, next to any value.
            Matrix bad[] = {x, x, x};
            const double values[] = {-kNan, -kInfinity, kInfinity};
            for (int64_t i = 0; i < 3 && count > 0; ++i) bad[i][count * i / 3] = values[i];
            const Outputs out = run([&](Harness& h) -> Outputs {
                Outputs results;
                for (const Matrix& values : {x, bad[0], bad[1], bad[2]}) {
                    const Tensor result = h.output(DType::f32, {1});
                    h.call(op::NormTerm{.out = result, .x = h.input(values, dtype(), {count}), .norm = norm});
                    results.push_back(h.read(result));
                }
                return results;
            });
            const Matrix expected(1, 1, reference::norm_term(x, norm));
            if (norm == VectorNorm::infinity) {
                expect_same_bits(out[0], expected, "largest magnitude");  // selected, not computed
            } else {
                expect_close(out[0], expected, reduction(DType::f32, count), "sum of powers");
            }
            if (count == 0) continue;
            EXPECT_TRUE(std::isnan(out[1][0]));
            EXPECT_EQ(out[2][0], kInfinity);
            EXPECT_EQ(out[3][0], kInfinity);
        }
    }
}

TEST_P(UtilitiesTest, ClipCoefficient) {
    struct Case {
        std::vector<double> terms;
        float max_norm;
    };
    const Case cases[] = {{{9.0, 16.0}, 1.0f},      {{9.0, 16.0}, 5.0f}, {{9.0, 16.0}, 30.0f},
                          {{9.0, 16.0}, 0.0f},      {{0.0}, 1.0f},       {{0.0}, 0.0f},
                          {{kInfinity, 1.0}, 1.0f}, {{1.0, kNan}, 0.0f}, {{kNan, 1.0, kInfinity}, 0.0f}};
    for (const VectorNorm kind : kNorms) {
        for (const Case& c : cases) {
            Matrix terms(1, static_cast<int64_t>(c.terms.size()));
            terms.values = c.terms;
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor coefficient = h.output(DType::f32, {1}), norm = h.output(DType::f32, {1});
                h.call(op::ClipCoefficient{.coefficient = coefficient,
                                           .norm = norm,
                                           .terms = h.input(terms, DType::f32, {terms.size()}),
                                           .max_norm = c.max_norm,
                                           .kind = kind});
                return {h.read(coefficient), h.read(norm)};
            });
            const reference::Clip expected = reference::clip_coefficient(terms, c.max_norm, kind);
            if (std::isfinite(expected.norm)) {
                expect_close(out[0], Matrix(1, 1, expected.coefficient), few_operations(DType::f32),
                             "coefficient");
                expect_close(out[1], Matrix(1, 1, expected.norm), few_operations(DType::f32), "norm");
            } else {
                EXPECT_TRUE(std::isnan(out[0][0]));
                EXPECT_EQ(std::isnan(out[1][0]), std::isnan(expected.norm));
                EXPECT_FALSE(std::isfinite(out[1][0]));
            }
        }
    }
}

}  // namespace utilities_test
}  // namespace speedrun::testing
