// Random values have no reference: tests check the generator's words (tests/data has their known answers),
// independence of how an array is split, and the moments.
#include <algorithm>

#include "kernels/device/philox.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::random_test {

class RandomTest : public OpTest {
  protected:
    Matrix draw(bool normal, int64_t count, uint64_t seed, uint64_t sequence, int64_t offset,
                float size) const {
        return run([&](Harness& h) -> Outputs {
            const Tensor x = h.output(DType::f32, {count});
            if (normal)
                h.call(op::RandomNormal{
                    .x = x, .seed = seed, .sequence = sequence, .offset = offset, .deviation = size});
            if (!normal)
                h.call(op::RandomUniform{
                    .x = x, .seed = seed, .sequence = sequence, .offset = offset, .bound = size});
            return {h.read(x)};
        })[0];
    }
};
INSTANTIATE_TEST_SUITE_P(Backends, RandomTest,
                         ::testing::Combine(::testing::ValuesIn(backends()), ::testing::Values(DType::f32)),
                         param_name);

double mean_power(const Matrix& x, int power) {
    double sum = 0.0;
    for (double value : x.values) sum += std::pow(value, power);
    return sum / static_cast<double>(x.size());
}

TEST_P(RandomTest, PiecesEqualWhole) {
    for (bool normal : {false, true}) {
        for (int64_t origin : {int64_t{0}, int64_t{5}, (int64_t{1} << 34) - 50}) {
            const Matrix whole = draw(normal, 20011, 7, 3, origin, 0.5f);
            const int64_t cuts[] = {0, 1, 2, 6, 13, 130, 8192, 8195, 20011};
            for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
                const int64_t count = cuts[i + 1] - cuts[i];
                expect_same_bits(draw(normal, count, 7, 3, origin + cuts[i], 0.5f),
                                 reference::column_block(whole, cuts[i], count),
                                 fmt::format("normal={} from {} + {}", normal, origin, cuts[i]));
            }
        }
    }
}

// Seed, sequence and offset all matter, including their upper halves: no two streams have more equal values
// than by chance.
TEST_P(RandomTest, SeedsAndSequencesDiffer) {
    constexpr uint64_t kHigh = uint64_t{1} << 32;
    for (bool normal : {false, true}) {
        const int64_t count = 4096;
        const std::vector<Matrix> draws = {
            draw(normal, count, 1, 2, 0, 1.0f),         draw(normal, count, 2, 2, 0, 1.0f),
            draw(normal, count, 1, 3, 0, 1.0f),         draw(normal, count, 1 + kHigh, 2, 0, 1.0f),
            draw(normal, count, 1, 2 + kHigh, 0, 1.0f), draw(normal, count, 2, 1, 0, 1.0f),
            draw(normal, count, 1, 2, kHigh * 4, 1.0f), draw(normal, count, 1, 2, kHigh, 1.0f)};
        for (size_t i = 0; i < draws.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                const double correlation = reference::dot(draws[i], draws[j]) /
                                           (reference::norm(draws[i]) * reference::norm(draws[j]));
                EXPECT_LT(std::abs(correlation), 5.0 / 64.0) << i << " and " << j;  // 5 deviations of 1/√4096
            }
        }
    }
}

// Bounds of five standard errors at n = 200000: a correct generator fails one in a million; the seed is fixed
// anyway.
TEST_P(RandomTest, NormalMoments) {
    const int64_t count = 200000;
    const float deviation = 0.02f;
    const Matrix x =
        reference::times(draw(true, count, 42, 0, 0, deviation), 1.0 / static_cast<double>(deviation));
    const double error = 5.0 / std::sqrt(static_cast<double>(count));
    EXPECT_NEAR(mean_power(x, 1), 0.0, error);
    EXPECT_NEAR(mean_power(x, 2), 1.0, error * std::sqrt(2.0));
    EXPECT_NEAR(mean_power(x, 3), 0.0, error * std::sqrt(15.0));
    EXPECT_NEAR(mean_power(x, 4), 3.0, error * std::sqrt(96.0));
    // Kolmogorov–Smirnov: the maximum distance of the distributions, below 1.95/√n in 99.9% of cases.
    std::vector<double> sorted = x.values;
    std::sort(sorted.begin(), sorted.end());
    double distance = 0.0;
    for (int64_t i = 0; i < count; ++i) {
        const double expected = 0.5 * std::erfc(-sorted[static_cast<size_t>(i)] / std::sqrt(2.0));
        distance = std::max(distance,
                            std::abs(expected - (static_cast<double>(i) + 0.5) / static_cast<double>(count)));
    }
    EXPECT_LT(distance, 1.95 / std::sqrt(static_cast<double>(count)));
    for (int64_t lag : {1, 2, 3, 4}) {  // adjacent values come from one block of random words
        double sum = 0.0;
        for (int64_t i = lag; i < count; ++i) sum += x[i] * x[i - lag];
        EXPECT_NEAR(sum / static_cast<double>(count), 0.0, error) << "lag " << lag;
    }
}

TEST_P(RandomTest, UniformMoments) {
    const int64_t count = 200000;
    const Matrix x = reference::times(draw(false, count, 42, 1, 0, 0.25f), 4.0);
    const double error = 5.0 / std::sqrt(static_cast<double>(count));
    const auto [low, high] = std::minmax_element(x.values.begin(), x.values.end());
    EXPECT_GE(*low, -1.0);
    EXPECT_LE(*high, 1.0);
    EXPECT_LT(*low, -0.999);
    EXPECT_GT(*high, 0.999);
    EXPECT_NEAR(mean_power(x, 1), 0.0, error * std::sqrt(1.0 / 3.0));
    EXPECT_NEAR(mean_power(x, 2), 1.0 / 3.0, error * std::sqrt(4.0 / 45.0));
    EXPECT_NEAR(mean_power(x, 4), 1.0 / 5.0, error * std::sqrt(1.0 / 9.0 - 1.0 / 25.0));
}

// Initial values must not change between builds. Uniform element i is word i mod 4 of the block (counter i
// div 4, sequence; key seed). Its upper 24 bits select the midpoint of one of 2²⁴ equal intervals.
TEST_P(RandomTest, UniformIsPhilox) {
    const uint64_t seed = 0x123456789abcdef0, sequence = 0xfedcba9876543210;
    const int64_t offset = (int64_t{1} << 35) + 2;
    const Matrix x = draw(false, 10, seed, sequence, offset, 1.0f);
    for (int64_t i = 0; i < x.size(); ++i) {
        const auto block = static_cast<uint64_t>((offset + i) / 4);
        const auto words =
            philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                        static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                       philox_key(seed));
        const double unit =
            (static_cast<double>(words[static_cast<size_t>((offset + i) % 4)] >> 8) + 0.5) * 0x1p-24;
        EXPECT_NEAR(x[i], 2.0 * unit - 1.0, 2 * 0x1p-24) << i;
    }
}

}  // namespace speedrun::testing::random_test
