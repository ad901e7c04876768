// Drawing of tokens: frequencies, and the tokens that top_k and top_p leave.
#include "train/commands/token_draw.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace speedrun::token_draw_test {

// Probabilities 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

std::array<double, 4> shares(const DrawOptions& options) {
    constexpr uint32_t kDraws = 10'000;
    std::array<double, 4> result{};
    for (uint32_t i = 0; i < kDraws; ++i)
        result[static_cast<size_t>(draw_token(kLogits, options, i * (UINT32_MAX / kDraws)))] += 1.0 / kDraws;
    return result;
}

void expect_shares(const DrawOptions& options, const std::array<double, 4>& expected) {
    const std::array<double, 4> actual = shares(options);
    // Evenly spaced draws: each share is off by two draws at most.
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(actual[i], expected[i], 3e-4) << i;
}

TEST(TokenDrawTest, SharesAreTheProbabilities) {
    expect_shares({}, {0.1, 0.4, 0.2, 0.3});
    expect_shares({.top_k = 4}, {0.1, 0.4, 0.2, 0.3});
    expect_shares({.top_k = 9}, {0.1, 0.4, 0.2, 0.3});
    // Temperature 1/2 squares the probabilities: 1, 16, 4, 9 of 30.
    expect_shares({.temperature = 0.5}, {1 / 30.0, 16 / 30.0, 4 / 30.0, 9 / 30.0});
    EXPECT_EQ(draw_token(kLogits, {.temperature = 0}, 5), 1);
}

TEST(TokenDrawTest, TopKKeepsTheMostLikely) {
    expect_shares({.top_k = 1}, {0, 1, 0, 0});
    expect_shares({.top_k = 2}, {0, 4 / 7.0, 0, 3 / 7.0});
    expect_shares({.top_k = 3}, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0});
}

TEST(TokenDrawTest, TopPKeepsTheFewestWithItsShare) {
    expect_shares({.top_p = 1e-9}, {0, 1, 0, 0});
    expect_shares({.top_p = 0.39}, {0, 1, 0, 0});
    expect_shares({.top_p = 0.5}, {0, 4 / 7.0, 0, 3 / 7.0});
    expect_shares({.top_p = 0.75}, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0});
    expect_shares({.top_p = 0.95}, {0.1, 0.4, 0.2, 0.3});
    // The share is of the tokens that top_k leaves: 4/7 is enough for 0.55.
    expect_shares({.top_k = 2, .top_p = 0.55}, {0, 1, 0, 0});
    // The share is of the probabilities after the temperature: 16/30 is enough for 0.5.
    expect_shares({.temperature = 0.5, .top_p = 0.5}, {0, 1, 0, 0});
}

TEST(TokenDrawTest, EqualLogitsKeepTheFirst) {
    const std::vector<float> equal(8, 1.0f);
    std::set<int32_t> drawn;
    for (uint32_t i = 0; i < 64; ++i) drawn.insert(draw_token(equal, {.top_k = 3}, i << 26));
    EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 2}));
}

TEST(TokenDrawTest, NeverDrawsImpossibleTokens) {
    const float never = -std::numeric_limits<float>::infinity();
    for (const uint32_t random : {0u, UINT32_MAX})
        EXPECT_EQ(draw_token(std::vector<float>{never, 2, never}, {}, random), 1);
}

}  // namespace speedrun::token_draw_test
