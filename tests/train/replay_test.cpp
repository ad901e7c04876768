// Replay of small graphs with known times.
#include "train/timeline/replay.h"

#include <gtest/gtest.h>

#include "kernels/device/error.h"

namespace speedrun::testing::replay_test {

constexpr double kSameTime = 1e-9;  // seconds; sums of a few values in another order

ReplayItem computing(int stream, double seconds) {
    return {.stream = stream, .busy_s = {seconds, 0, 0}};
}
ReplayItem sending(int stream, double inside, double between, double delay = 0) {
    return {.stream = stream, .delay_s = delay, .busy_s = {0, inside, between}};
}
ReplayItem wait(int stream, int item) {
    return {.stream = stream, .waits_for = item};
}

// 3 compute items of 40 s, each followed by a collective of 40 s on another stream. Only the last collective is
// exposed.
TEST(ReplayTest, StreamsRunInOrderAndWaitForEvents) {
    std::vector<ReplayItem> items;
    for (int layer = 0; layer < 3; ++layer) {
        items.push_back(computing(0, 40));
        items.push_back({.stream = 0});  // event record
        items.push_back(wait(1, static_cast<int>(items.size()) - 1));
        items.push_back(sending(1, 40, 0));
    }
    const auto spans = replay(items, 2);
    for (int layer = 0; layer < 3; ++layer) {
        const auto at = [&](int i) { return spans[static_cast<size_t>(4 * layer + i)]; };
        EXPECT_NEAR(at(0).begin_s, 40 * layer, kSameTime);
        EXPECT_NEAR(at(3).begin_s, 40 * (layer + 1), kSameTime);
        EXPECT_NEAR(at(3).end_s, 40 * (layer + 2), kSameTime);
    }
    // Chain of causes: last collective, its wait, the last event record, compute.
    EXPECT_EQ(spans[11].cause, 10);
    EXPECT_EQ(spans[9].cause, 8);
    EXPECT_EQ(spans[8].cause, 5);
    EXPECT_EQ(spans[0].cause, -1);
}

TEST(ReplayTest, AWaitForWhatIsOverIsNoCause) {
    const auto spans = replay({computing(0, 1), computing(1, 5), wait(1, 0), computing(1, 2)}, 2, {0, 0, 0});
    EXPECT_NEAR(spans[3].begin_s, 5, kSameTime);
    EXPECT_EQ(spans[2].cause, 1);
}

TEST(ReplayTest, WhatRunsAtTheSameTimeSharesAResource) {
    const std::vector<ReplayItem> items{computing(0, 10), computing(1, 4)};
    const auto shared = replay(items, 2), apart = replay(items, 2, {0, 1, 1});
    EXPECT_NEAR(shared[1].end_s, 8, kSameTime);
    EXPECT_NEAR(shared[0].end_s, 14, kSameTime);
    EXPECT_NEAR(apart[1].end_s, 4, kSameTime);
    EXPECT_NEAR(apart[0].end_s, 10, kSameTime);
}

// The first collective needs half of the links' bandwidth, the second all of it: together 1.5 times.
TEST(ReplayTest, SharesOfLinksAreWhatCollectivesNeed) {
    const auto spans = replay({sending(0, 10, 5), sending(1, 0, 10), sending(2, 0, 0, 3)}, 3);
    EXPECT_NEAR(spans[0].end_s, 15, kSameTime);
    EXPECT_NEAR(spans[1].end_s, 15, kSameTime);
    EXPECT_NEAR(spans[2].end_s, 3, kSameTime);
    // Latency uses no bandwidth: the second collective has the links alone for the first 5 seconds.
    const auto later = replay({sending(0, 0, 10, 5), sending(1, 0, 10)}, 2);
    EXPECT_NEAR(later[1].end_s, 15, kSameTime);
    EXPECT_NEAR(later[0].end_s, 20, kSameTime);
    // Compute and links are separate resources.
    const auto beside = replay({computing(0, 10), sending(1, 10, 0)}, 2);
    EXPECT_NEAR(beside[0].end_s, 10, kSameTime);
    EXPECT_NEAR(beside[1].end_s, 10, kSameTime);
}

TEST(ReplayTest, RefusesWhatCannotBe) {
    EXPECT_THROW(replay({wait(0, 1), computing(1, 1)}, 2), Error);
    EXPECT_THROW(replay({computing(0, -1), computing(1, 1)}, 2), Error);
    EXPECT_TRUE(replay({}, 1).empty());
}

}  // namespace speedrun::testing::replay_test
