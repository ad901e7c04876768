#include "train/model/sign_bits.h"

#include <gtest/gtest.h>

#include <bit>

namespace speedrun::sign_bits_test {

// Words computed in Python from the paper's definition of Philox-4x32-10. Saved weights depend on these signs.
TEST(SignBitsTest, AreTheSameInEveryBuild) {
    const std::vector<int32_t> bits = sign_bits({6, 256});
    ASSERT_EQ(bits.size(), 6u * 8);
    const uint32_t first[] = {0x5f713bde, 0x4df9e5d3, 0x85cd5dd3, 0xe6ddeab9,
                              0x5dec36aa, 0x204a05da, 0x1660e04a, 0xea18661b};
    const uint32_t last[] = {0x017feb52, 0x969e0289, 0x1b341d13, 0xe8c7d5b6,
                             0x649f79fc, 0x5fe17e5b, 0x3b830810, 0x8c940e2d};
    for (size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(static_cast<uint32_t>(bits[i]), first[i]);
        EXPECT_EQ(static_cast<uint32_t>(bits[5 * 8 + i]), last[i]);
    }
}

// A narrower table has the first signs of the wider table's rows, and zero bits after its last column.
TEST(SignBitsTest, DependOnRowAndColumnAlone) {
    const std::vector<int32_t> wide = sign_bits({9, 256});
    for (const int64_t columns : {1, 31, 32, 33, 160}) {
        const std::vector<int32_t> bits = sign_bits({9, columns});
        const auto words = static_cast<size_t>((columns + 31) / 32);
        ASSERT_EQ(bits.size(), 9 * words);
        for (size_t row = 0; row < 9; ++row) {
            for (int64_t c = 0; c < 32 * static_cast<int64_t>(words); ++c) {
                const auto bit = [&](const std::vector<int32_t>& of, size_t stride) {
                    return static_cast<uint32_t>(of[row * stride + static_cast<size_t>(c / 32)]) >> (c % 32) &
                           1;
                };
                EXPECT_EQ(bit(bits, words), c < columns ? bit(wide, 8) : 0);
            }
        }
    }
}

// Ranks that shard the columns read the signs of their own columns.
TEST(SignBitsTest, BeginAtAnyColumn) {
    const std::vector<int32_t> wide = sign_bits({3, 256});
    for (const int64_t first : {0, 20, 64, 100, 200}) {
        const std::vector<int32_t> bits = sign_bits({3, 40, first});
        for (size_t row = 0; row < 3; ++row) {
            for (int64_t c = 0; c < 40; ++c) {
                const int64_t whole = first + c;
                EXPECT_EQ(bits[row * 2 + static_cast<size_t>(c / 32)] >> (c % 32) & 1,
                          wide[row * 8 + static_cast<size_t>(whole / 32)] >> (whole % 32) & 1)
                    << "column " << whole;
            }
        }
    }
}

TEST(SignBitsTest, HalfOfThemAreMinus) {
    int64_t minus = 0;
    for (const int32_t word : sign_bits({2048, 96})) minus += std::popcount(static_cast<uint32_t>(word));
    EXPECT_NEAR(static_cast<double>(minus), 98304, 5 * 222);  // fair coins; standard deviation 222
}

}  // namespace speedrun::sign_bits_test
