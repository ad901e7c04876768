#include "data/permutation.h"

#include "tests/data/test_files.h"

namespace speedrun::permutation_test {

std::vector<int64_t> images(int64_t size, uint64_t seed, int64_t epoch) {
    const Permutation permutation(size, {seed, epoch});
    std::vector<int64_t> result;
    for (int64_t i = 0; i < size; ++i) result.push_back(permutation(i));
    return result;
}

TEST(Permutation, IsABijection) {
    for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
        for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
            std::vector<int> hits(static_cast<size_t>(size), 0);
            for (const int64_t image : images(size, 42, epoch)) {
                ASSERT_GE(image, 0);
                ASSERT_LT(image, size);
                ++hits[static_cast<size_t>(image)];
            }
            for (const int hit : hits) EXPECT_EQ(hit, 1) << "size " << size << " epoch " << epoch;
        }
    }
}

TEST(Permutation, DependsOnSeedAndEpochAlone) {
    EXPECT_EQ(images(1000, 1, 0), images(1000, 1, 0));
    EXPECT_NE(images(1000, 1, 0), images(1000, 2, 0));
    EXPECT_NE(images(1000, 1, 0), images(1000, 1, 1));
    EXPECT_NE(images(1000, 1, 0), images(1000, uint64_t{1} << 32 | 1, 0));
    EXPECT_NE(images(1000, 1, 0), images(1000, 1, int64_t{1} << 32));
}

// Every element reaches every position about equally often. 3,000 seeds over 5 positions: expected 600 with a standard
// deviation of 22; six of these exclude chance among 25 counts.
TEST(Permutation, IsUniform) {
    constexpr int kSize = 5, kSeeds = 3000;
    int counts[kSize][kSize] = {};
    for (int seed = 0; seed < kSeeds; ++seed) {
        const Permutation permutation(kSize, {static_cast<uint64_t>(seed), 0});
        for (int i = 0; i < kSize; ++i) ++counts[i][permutation(i)];
    }
    for (const auto& row : counts) {
        for (const int count : row) EXPECT_NEAR(count, kSeeds / kSize, 6 * 22);
    }
}

TEST(Permutation, WorksFarBeyond32Bits) {
    const int64_t size = (int64_t{1} << 40) + 12345;
    const Permutation permutation(size, {7, 3});
    for (const int64_t i : {int64_t{0}, int64_t{1}, size / 2, size - 1}) {
        EXPECT_GE(permutation(i), 0);
        EXPECT_LT(permutation(i), size);
    }
    EXPECT_NE(permutation(0), permutation(int64_t{1} << 32));
}

TEST(Permutation, RejectsWhatIsOutOfRange) {
    expect_error(ExitCode::failure, {"0 elements"}, [] { Permutation(0, {1, 1}); });
    expect_error(ExitCode::failure, {"index 3", "3 elements"}, [] { Permutation(3, {1, 1})(3); });
    expect_error(ExitCode::failure, {"index -1"}, [] { Permutation(3, {1, 1})(-1); });
}

TEST(WindowOffset, StaysInRangeAndReachesAllOfIt) {
    std::vector<int> hits(7, 0);
    for (int64_t epoch = 0; epoch < 500; ++epoch) {
        const int64_t offset = window_offset(7, {9, epoch}, 0);
        ASSERT_GE(offset, 0);
        ASSERT_LT(offset, 7);
        ++hits[static_cast<size_t>(offset)];
    }
    for (const int hit : hits) EXPECT_GT(hit, 0);
    EXPECT_EQ(window_offset(1, {9, 5}, 3), 0);
    EXPECT_NE(window_offset(1 << 20, {9, 5}, 3), window_offset(1 << 20, {9, 5}, 4));
    EXPECT_NE(window_offset(1 << 20, {9, 5}, 3), window_offset(1 << 20, {9, 6}, 3));
}

}  // namespace speedrun::permutation_test
