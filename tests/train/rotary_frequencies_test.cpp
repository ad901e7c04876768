// Rotary frequencies of a head's pairs.
#include "train/model/parts/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace speedrun::rotary_frequencies_test {

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

// A head of 128: (1/1024)^linspace(0, 1, 32), then 32 pairs without rotation. Both end points are exact.
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

// Windows of 3, 7, 11 and 13 blocks of 128 preceding tokens. Pairs with at least 32 rotations within the old window
// keep their frequency. Pairs with at most one are slowed by the ratio of windows. Between them, the factor is
// interpolated.
TEST(RotaryFrequencies, YarnRescalesAtEachChangeOfTheWindow) {
    const RotaryConfig plain{.base = 1024, .fraction = 0.5, .endpoint = true};
    RotaryConfig yarn = plain;
    yarn.yarn = YarnConfig{.window = "long"};
    const std::vector<int64_t> windows{385, 897, 1409, 1665};
    EXPECT_EQ(rotary_frequencies(yarn, 64, {385}), rotary_frequencies(plain, 64));
    EXPECT_EQ(rotary_frequencies(plain, 64, windows), rotary_frequencies(plain, 64)) << "no YaRN configured";

    const Frequencies before = rotary_frequencies(plain, 64), once = rotary_frequencies(yarn, 64, {385, 897});
    const double turn = 2 * std::acos(-1.0);
    int kept = 0, slowed = 0, between = 0;
    for (size_t i = 0; i < 32; ++i) {
        const double rotations = 384 * before[i] / turn;
        if (rotations >= 32) {
            ++kept;
            EXPECT_EQ(once[i], before[i]) << i;
        } else if (rotations <= 1) {
            ++slowed;
            EXPECT_NEAR(once[i], before[i] * 3 / 7, 1e-15) << i;
        } else {
            ++between;
            const double share = (rotations - 1) / 31;
            EXPECT_NEAR(once[i], before[i] * (share + (1 - share) * 3 / 7), 1e-15) << i;
        }
    }
    EXPECT_TRUE(kept > 2 && slowed > 2 && between > 2) << kept << " " << slowed << " " << between;
    EXPECT_EQ(once[40], 0);

    // Successive changes of the window, each applied to the previous frequencies.
    const Frequencies all = rotary_frequencies(yarn, 64, windows);
    EXPECT_NEAR(all[31], before[31] * 3 / 13, 1e-15);
    EXPECT_EQ(all[0], 1);
    const double scale =
        (0.2 * std::log(7 / 3.0) + 1) * (0.2 * std::log(11 / 7.0) + 1) * (0.2 * std::log(13 / 11.0) + 1);
    EXPECT_NEAR(yarn_scale(yarn, windows), scale, 1e-15);
    EXPECT_EQ(yarn_scale(yarn, {385}), 1);
    EXPECT_EQ(yarn_scale(plain, windows), 1);
    EXPECT_EQ(described_rotary(yarn, 64, windows),
              ", 32 of 64 pairs, to 1/1024, YaRN 385 -> 897 -> 1409 -> 1665");
}

}  // namespace speedrun::rotary_frequencies_test
