// Detects a run without progress. A run that validates, saves or was suspended with its machine is not stalled.
// Covers: train/runlog/sign_of_life.cpp
#include "train/commands/stalled_run.h"

#include <gtest/gtest.h>
#include <utime.h>

#include "tests/temp_dir.h"
#include "train/runlog/sign_of_life.h"

namespace speedrun::testing::stalled_run_test {

class StalledRunTest : public ::testing::Test {
  protected:
    // Checks every 100 ms. True if the run stalled within this time.
    bool stalls_within(double seconds) {
        for (double end = now_ + seconds; now_ < end; now_ += 0.1)
            if (run_()) return true;
        return false;
    }
    void append(const std::string& name) { std::ofstream(run_path_ + "/" + name, std::ios::app) << "x"; }

    TempDir dir_;
    const std::string run_path_ = dir_.path() + "/run";
    double now_ = 50;
    StalledRun run_{run_path_, 10, [this] { return now_; }};
};

TEST_F(StalledRunTest, ARunWithoutAFolder) {
    EXPECT_FALSE(stalls_within(9));
    EXPECT_TRUE(stalls_within(2));
}

TEST_F(StalledRunTest, AFolderThatDoesNotChange) {
    EXPECT_FALSE(stalls_within(9));
    std::filesystem::create_directory(run_path_);
    append("metrics.jsonl");
    EXPECT_FALSE(stalls_within(9));
    EXPECT_TRUE(stalls_within(3));
}

TEST_F(StalledRunTest, AnyFileThatChangesIsASign) {
    std::filesystem::create_directories(run_path_ + "/checkpoints/.step-00000007.part");
    for (const char* name :
         {"metrics.jsonl", "run.log", "checkpoints/.step-00000007.part/rank-00000.safetensors"}) {
        append(name);
        EXPECT_FALSE(stalls_within(9)) << name;
        append(name);
        EXPECT_FALSE(stalls_within(9)) << name;
    }
    EXPECT_TRUE(stalls_within(3));
}

TEST_F(StalledRunTest, ValidationShowsASign) {
    std::filesystem::create_directory(run_path_);
    append("run.log");
    const std::string log = run_path_ + "/run.log";
    const utimbuf long_ago{1000, 1000};
    ASSERT_EQ(utime(log.c_str(), &long_ago), 0);
    EXPECT_FALSE(stalls_within(9));
    SignOfLife(run_path_).show();
    EXPECT_FALSE(stalls_within(9));
    EXPECT_TRUE(stalls_within(3));
}

TEST_F(StalledRunTest, ASuspendedMachineIsNoStall) {
    EXPECT_FALSE(stalls_within(9));
    now_ += 3600;
    EXPECT_FALSE(stalls_within(9));
    EXPECT_TRUE(stalls_within(2));
}

}  // namespace speedrun::testing::stalled_run_test
