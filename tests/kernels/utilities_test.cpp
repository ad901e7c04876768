#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::utilities_test {

SPEEDRUN_OP_TEST(UtilitiesTest);

const Ints kCounts = {1, 7, 33, 130, 100003};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST_P(UtilitiesTest, FillAndScale) {
    for (const int64_t count : kCounts) {
        const Matrix x = random_matrix(1, count, 1, dtype());
        check([&](Harness& h) -> Checks {
            const Tensor filled = h.output(dtype(), {count}), scaled = h.inout(x, dtype(), {count});
            h.call(op::Fill{.x = filled, .value = 0.3f});
            h.call(op::Scale{.x = scaled, .factor = -0.3f});
            return {
                {filled, rounded(Matrix(1, count, 0.3f), dtype()), "fill"},
                {scaled, reference::times(x, static_cast<double>(-0.3f)), "scale", few_operations(dtype())}};
        });
    }
}

// Round to nearest even: ties, the largest finite value (which rounds to infinity), NaN, infinities, −0.
TEST_P(UtilitiesTest, CastRoundsToNearestEven) {
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
    for (const int64_t count : kCounts) {
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

TEST_P(UtilitiesTest, Sums) {
    sweep(std::tuple{kCounts, kBoth}, [&](int64_t count, bool accumulate) {
        const Matrix x = random_matrix(1, count, 2, DType::f32);
        double expected = accumulate ? 2.5 : 0.0;
        for (double value : x.values) expected += value;
        check([&](Harness& h) -> Checks {
            const Tensor sum =
                accumulate ? h.inout(Matrix(1, 1, 2.5), DType::f32, {1}) : h.output(DType::f32, {1});
            h.call(op::Sum{.out = sum, .x = h.input(x, DType::f32, {count}), .accumulate = accumulate});
            return {{sum, Matrix(1, 1, expected), "sum", cancelling(count)}};
        });
    });
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
    sweep(std::tuple{std::to_array(kNorms), kCounts}, [&](VectorNorm norm, int64_t count) {
        const Matrix x = random_matrix(1, count, 1, dtype());
        // Detects a NaN or an infinity at any index, of either sign, next to any value.
        Matrix bad[] = {x, x, x};
        const double values[] = {-kNan, -kInfinity, kInfinity};
        for (int64_t i = 0; i < 3; ++i) bad[i][count * i / 3] = values[i];
        const Outputs out = run([&](Harness& h) -> Outputs {
            Outputs results;
            for (const Matrix& values : {x, bad[0], bad[1], bad[2]}) {
                const Tensor result = h.output(DType::f32, {1});
                h.call(op::NormTerm{.pieces = {{.out = result, .x = h.input(values, dtype(), {count})}},
                                    .norm = norm});
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
        EXPECT_TRUE(std::isnan(out[1][0]));
        EXPECT_EQ(out[2][0], kInfinity);
        EXPECT_EQ(out[3][0], kInfinity);
    });
}

// More pieces than a launch has, some of several blocks and one empty: each has the bits of a call of its own.
TEST_P(UtilitiesTest, NormTermsOfManyPieces) {
    const auto values = [&](int64_t i) {
        const int64_t count = i == 3 ? 0 : i % 50 == 7 ? 20011 : 1 + 31 * i;
        return random_matrix(1, count, static_cast<uint64_t>(i), dtype());
    };
    constexpr int64_t kMany = 150;
    for (const VectorNorm norm : kNorms) {
        const auto call = [&](const std::vector<int64_t>& numbers) {
            return run([&](Harness& h) {
                op::NormTerm call{.pieces = {}, .norm = norm};
                for (const int64_t i : numbers) {
                    const Matrix x = values(i);
                    call.pieces.push_back(
                        {.out = h.output(DType::f32, {1}), .x = h.input(x, dtype(), {x.size()})});
                }
                h.call(call);
                Outputs out;
                for (const auto& piece : call.pieces) out.push_back(h.read(piece.out));
                return out;
            });
        };
        std::vector<int64_t> all;
        for (int64_t i = 0; i < kMany; ++i) all.push_back(i);
        const Outputs together = call(all);
        EXPECT_EQ(together[3][0], 0.0) << "an empty piece";
        for (const int64_t i : {int64_t{0}, int64_t{57}, int64_t{63}, int64_t{64}, kMany - 1})
            expect_same_bits(together[static_cast<size_t>(i)], call({i})[0], fmt::format("piece {}", i));
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

}  // namespace speedrun::testing::utilities_test
