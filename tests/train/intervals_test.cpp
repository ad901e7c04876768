// Time intervals, and exposed communication compared with values computed by hand.
#include "train/trace/intervals.h"

#include <gtest/gtest.h>

namespace speedrun::testing::intervals_test {

std::vector<std::pair<double, double>> pairs(const Intervals& all) {
    std::vector<std::pair<double, double>> result;
    for (const Interval& i : all) result.emplace_back(i.begin, i.end);
    return result;
}
using Pairs = std::vector<std::pair<double, double>>;

TEST(IntervalsTest, UniteAndIntersectAndSubtract) {
    const Intervals a = united({{5, 7}, {1, 2}, {2, 3}, {6, 9}, {4, 4}}),
                    b = united({{0, 1.5}, {2.5, 6}, {8, 8.5}});
    EXPECT_EQ(pairs(a), (Pairs{{1, 3}, {5, 9}}));
    EXPECT_EQ(pairs(common(a, b)), (Pairs{{1, 1.5}, {2.5, 3}, {5, 6}, {8, 8.5}}));
    EXPECT_EQ(pairs(without(a, b)), (Pairs{{1.5, 2.5}, {6, 8}, {8.5, 9}}));
    EXPECT_EQ(pairs(without({{0, 10}}, a)), (Pairs{{0, 1}, {3, 5}, {9, 10}}));
    EXPECT_EQ(length(a), 6);
    EXPECT_TRUE(common(a, {}).empty());
    EXPECT_EQ(pairs(without(a, {})), pairs(a));
}

// Compute is idle from 10 to 20. A reduction ends at 12. The optimizer runs from 12 to 15, including its own exchange
// from 13 to 14. A gather runs from 13.5 to 17.
TEST(IntervalsTest, ExposedExcludesWorkOfTheOptimizer) {
    const StreamTimes times{.idle = {{10, 20}},
                            .collectives = {{8, 12}, {13, 14}, {13.5, 17}},
                            .optimizer = {{12, 15}},
                            .exchanges = {{13, 14}}};
    EXPECT_EQ(pairs(exposed(times)), (Pairs{{10, 12}, {13, 14}, {15, 17}}));
}

TEST(IntervalsTest, NothingIsExposedWithoutCollectivesOrIdleTime) {
    EXPECT_TRUE(exposed({.idle = {{0, 9}}, .collectives = {}, .optimizer = {}, .exchanges = {}}).empty());
    EXPECT_TRUE(exposed({.idle = {}, .collectives = {{0, 9}}, .optimizer = {}, .exchanges = {}}).empty());
}

}  // namespace speedrun::testing::intervals_test
