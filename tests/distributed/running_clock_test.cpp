// Time in which a process was stopped or its host suspended does not count as a peer's silence.
#include "train/comm/running_clock.h"

#include <gtest/gtest.h>

namespace speedrun::testing::running_clock_test {

class RunningClockTest : public ::testing::Test {
  protected:
    // Time advances in ticks of the watch's thread.
    void run_for(double seconds, double tick = 0.01) {
        for (double end = now_ + seconds; now_ < end - 1e-9;) {
            now_ += tick;
            clock_.read();
        }
    }
    void pause_for(double seconds) { now_ += seconds; }

    double now_ = 1000;
    RunningClock clock_{kTimeout, [this] { return now_; }};
    static constexpr double kTimeout = 5;
};

TEST_F(RunningClockTest, DetectsSilentPeer) {
    Silence silence(clock_);
    run_for(4.9);
    EXPECT_FALSE(silence.exceeds(kTimeout));
    run_for(0.2);
    EXPECT_TRUE(silence.exceeds(kTimeout));
    silence.restart();
    EXPECT_FALSE(silence.exceeds(kTimeout));
}

TEST_F(RunningClockTest, PauseRestartsTimeout) {
    Silence silence(clock_);
    run_for(4);
    pause_for(66);
    EXPECT_FALSE(silence.exceeds(kTimeout));  // any thread may read first
    run_for(4.9);                             // a peer that continues later has the whole timeout
    EXPECT_FALSE(silence.exceeds(kTimeout));
    run_for(0.2);
    EXPECT_TRUE(silence.exceeds(kTimeout));  // it does not continue
    EXPECT_EQ(clock_.read().num_pauses, 1);
    EXPECT_DOUBLE_EQ(clock_.read().pause_s, 66);
}

TEST_F(RunningClockTest, PauseIsSharedBetweenThreads) {
    Silence silence(clock_);
    run_for(4);
    pause_for(9);
    clock_.read();
    run_for(1);
    EXPECT_FALSE(silence.exceeds(kTimeout));
}

TEST_F(RunningClockTest, IgnoresShortPauses) {
    Silence silence(clock_);
    for (int i = 0; i < 4; ++i) {
        run_for(0.9);
        pause_for(2);
    }
    EXPECT_FALSE(silence.exceeds(kTimeout));
    EXPECT_EQ(clock_.read().num_pauses, 0);
}

TEST_F(RunningClockTest, PauseDoesNotAffectLaterWaits) {
    pause_for(9);
    Silence silence(clock_);
    run_for(5.1);
    EXPECT_TRUE(silence.exceeds(kTimeout));
}

// The watch's thread runs every 0.4 s on a busy or often stopped machine: a dead peer is still found.
TEST_F(RunningClockTest, ShortGapsOnlyDelayTimeout) {
    Silence silence(clock_);
    run_for(4.8, 0.4);
    EXPECT_FALSE(silence.exceeds(kTimeout));
    run_for(4.8, 0.4);
    EXPECT_TRUE(silence.exceeds(kTimeout));
    EXPECT_EQ(clock_.read().num_pauses, 0);
}

TEST_F(RunningClockTest, SystemClockAdvances) {
    const double before = RunningClock::seconds_since_boot();
    EXPECT_GT(before, 0);
    EXPECT_GE(RunningClock::seconds_since_boot(), before);
}

}  // namespace speedrun::testing::running_clock_test
