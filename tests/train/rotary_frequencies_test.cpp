// Which pairs of a head's dimensions turn, and how fast.
#include "train/model/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

namespace speedrun {
namespace {

using Frequencies = std::vector<double>;

TEST(RotaryFrequencies, OrdinaryOnesLeaveTheEndPointOut) {
    EXPECT_EQ(rotary_frequencies({.base = 10000}, 4),
              (Frequencies{1, std::pow(10000, -0.25), std::pow(10000, -0.5), std::pow(10000, -0.75)}));
    EXPECT_EQ(described_rotary({.base = 10000}, 4), "");
}

TEST(RotaryFrequencies, AFractionTurnsTheFirstPairsOverTheWholeRange) {
    const Frequencies half = rotary_frequencies({.base = 10000, .fraction = 0.5}, 8);
    ASSERT_EQ(half.size(), 8u);
    const Frequencies whole = rotary_frequencies({.base = 10000}, 4);
    EXPECT_EQ(Frequencies(half.begin(), half.begin() + 4), whole);
    EXPECT_EQ(Frequencies(half.begin() + 4, half.end()), Frequencies(4, 0.0));
    EXPECT_EQ(described_rotary({.fraction = 0.5}, 8), ", 4 of 8 pairs");
}

// A head of 128: (1/1024)^linspace(0, 1, 32), and 32 pairs that stay. The exponents of the end points are exact.
TEST(RotaryFrequencies, EndPointIncluded) {
    const RotaryConfig recipe{.base = 1024, .fraction = 0.5, .endpoint = true};
    const Frequencies frequencies = rotary_frequencies(recipe, 64);
    EXPECT_EQ(frequencies[0], 1);
    EXPECT_EQ(frequencies[31], 1.0 / 1024);
    EXPECT_EQ(frequencies[32], 0);
    for (size_t i = 0; i < 32; ++i)
        EXPECT_NEAR(frequencies[i], std::pow(1.0 / 1024, static_cast<double>(i) / 31), 1e-15) << i;
    EXPECT_EQ(described_rotary(recipe, 64), ", 32 of 64 pairs, to 1/1024");
}

}  // namespace
}  // namespace speedrun
