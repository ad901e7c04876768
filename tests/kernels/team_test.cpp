// The thread team of CPU loops: every item runs once, with any helpers and any concurrent starters.
#include "kernels/cpu/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace speedrun::testing::team_test {

struct Loop {
    std::vector<int> visits;         // per item; no atomics: ThreadSanitizer must detect an item that runs
                                     // twice
    std::atomic<int64_t> pieces{0};  // pieces that have run
    std::atomic<int> highest_member{0};
};

void visit(const void* body, int64_t begin, int64_t end, int member) {
    auto& loop = **static_cast<Loop* const*>(body);
    for (int64_t i = begin; i < end; ++i) ++loop.visits[static_cast<size_t>(i)];
    ++loop.pieces;
    int highest = loop.highest_member;
    while (highest < member && !loop.highest_member.compare_exchange_weak(highest, member)) {
    }
}

// Runs one loop, and expects that every item is visited once, in at most `pieces` pieces.
void run_loop(cpu::Team& team, int64_t count, int64_t pieces) {
    Loop loop;
    loop.visits.assign(static_cast<size_t>(count), 0);
    Loop* const body = &loop;
    team.run(count, pieces, visit, &body);
    for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(loop.visits[static_cast<size_t>(i)], 1) << i << " of " << count;
    EXPECT_LE(loop.pieces, std::max<int64_t>(1, std::min(count, pieces)));
    EXPECT_LT(loop.highest_member, team.size());
}

TEST(TeamTest, RunsEveryItemOnce) {
    for (int size : {1, 2, 3, 5}) {
        cpu::Team team(size);
        EXPECT_EQ(team.size(), size);
        for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
            for (int64_t pieces : {1, 2, 16, 1000}) run_loop(team, count, pieces);
        }
    }
}

// Loops in quick succession: a helper that is late for one must not run items of the next.
TEST(TeamTest, RunsThousandsOfShortLoops) {
    cpu::Team team(3);
    for (int i = 0; i < 3000; ++i) run_loop(team, 1 + i % 9, 16);
}

// Helpers that are entering their first wait, or returning to it, must not miss the end. The test hangs if
// they do.
TEST(TeamTest, StopsAtAnyTime) {
    for (int i = 0; i < 10000; ++i) {
        cpu::Team team(2 + i % 2);
        if (i % 4 != 0)
            team.run(
                8, 8, [](const void*, int64_t, int64_t, int) {}, nullptr);
    }
}

TEST(TeamTest, StreamsShareTeam) {
    cpu::Team team(2);
    std::vector<std::thread> streams;
    for (int s = 0; s < 3; ++s) {
        streams.emplace_back([&team] {
            for (int i = 0; i < 300; ++i) run_loop(team, 100, 8);
        });
    }
    for (std::thread& stream : streams) stream.join();
}

// Helpers do work: a piece that waits for another piece ends only if two threads run them.
TEST(TeamTest, HelpersRunItems) {
    cpu::Team team(2);
    struct Meeting {
        std::atomic<int> arrived{0};
    } meeting;
    Meeting* const body = &meeting;
    const auto meet = [](const void* argument, int64_t, int64_t, int) {
        auto& arrived = (*static_cast<Meeting* const*>(argument))->arrived;
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
    };
    team.run(2, 2, meet, &body);
    EXPECT_EQ(meeting.arrived, 2);
}

// A starter without work sleeps while a helper is still in its last piece.
TEST(TeamTest, StarterWaitsForLongItem) {
    cpu::Team team(3);
    struct Long {
        std::atomic<int> arrived{0}, done{0};
    } state;
    Long* const body = &state;
    const auto piece = [](const void* argument, int64_t, int64_t, int member) {
        Long& both = **static_cast<Long* const*>(argument);
        ++both.arrived;
        while (both.arrived < 2) std::this_thread::yield();
        if (member != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ++both.done;
    };
    for (int i = 0; i < 10; ++i) {
        state.arrived = state.done = 0;
        team.run(2, 2, piece, &body);
        ASSERT_EQ(state.done, 2);
    }
}

TEST(TeamTest, WakesAfterSleep) {
    cpu::Team team(3);
    for (int i = 0; i < 5; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than helpers spin
        run_loop(team, 64, 64);
    }
}

}  // namespace speedrun::testing::team_test
