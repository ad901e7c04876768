// Signals that stop a run. tests/runs/signals_test.sh tests whole runs.
#include "train/comm/stop_signals.h"

#include <gtest/gtest.h>

#include <thread>

namespace speedrun::testing::stop_signals_test {

int num_handled = 0;

TEST(StopSignalsTest, RepeatedInterruptForcesStop) {
    for (const int signal : {SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2})
        EXPECT_FALSE(insists(signal)) << signal;
    EXPECT_FALSE(insists(SIGINT));
    EXPECT_FALSE(insists(SIGTERM));  // mpirun sends it after Ctrl-C
    EXPECT_FALSE(insists(SIGINT));
    EXPECT_FALSE(insists(SIGTERM));  // timeout(1) sends it to its child and to the child's group
    std::this_thread::sleep_for(kRepeatedSignal + std::chrono::milliseconds(1));
    EXPECT_TRUE(insists(SIGINT));
    EXPECT_TRUE(insists(SIGTERM));
}

TEST(StopSignalsTest, ExitCodesAndTexts) {
    for (const int code : {129, 130, 138, 140, 143, 152}) EXPECT_TRUE(is_stop_code(code)) << code;
    for (const int code : {0, 1, 5, 15, 128, 134, 137, 139}) EXPECT_FALSE(is_stop_code(code)) << code;
    EXPECT_EQ(signal_text(SIGTERM), "SIGTERM");
    EXPECT_EQ(signal_text(SIGHUP), "SIGHUP (its terminal was closed)");
}

TEST(StopSignalsTest, KeepsIgnoredHangUpAndUnblocksSignals) {
    std::signal(SIGHUP, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
    sigset_t terminate;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &terminate, nullptr), 0);
    handle_stop_signals([](int) { ++num_handled; });
    for (const int signal : kStopSignals) raise(signal);
    EXPECT_EQ(num_handled, 5);  // all but HUP
    for (const int signal : kStopSignals) std::signal(signal, SIG_DFL);
}

}  // namespace speedrun::testing::stop_signals_test
