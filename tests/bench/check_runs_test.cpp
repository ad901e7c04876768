// Runs that a check on a GPU accepts, and runs that it rejects.
#include "tests/bench/check_runs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_dir.h"

namespace speedrun::bench {
namespace {

namespace fs = std::filesystem;

class CheckRunTest : public ::testing::Test {
  protected:
    void SetUp() override { write_run("run", {5, 4, 3, 2, 2, 2, 2, 2}, "done"); }

    std::string path(const std::string& name) const { return dir_.file(name); }

    // Steps of 1024 tokens; the first three take 100 ms, the others 10 ms.
    void write_run(const std::string& name, const std::vector<double>& losses, const char* status) {
        fs::create_directories(path(name));
        std::ofstream metrics(path(name) + "/metrics.jsonl");
        for (size_t i = 0; i < losses.size(); ++i) {
            metrics << Json({{"event", "step"},
                             {"step", i},
                             {"loss", losses[i]},
                             {"grad_norm", 1.5},
                             {"step_ms", i < 3 ? 100.0 : 10.0},
                             {"optimizer_ms", 1.0},
                             {"tokens", 1024 * (i + 1)}})
                    << "\n";
        }
        metrics << R"({"event":"val","step":8,"loss":2.5,"train_ms":350.0})"
                << "\n";
        std::ofstream(path(name) + "/summary.json") << Json({{"status", status},
                                                             {"steps", losses.size()},
                                                             {"train_ms", 350.0},
                                                             {"startup_ms", 900.0},
                                                             {"step_ms", {{"p50", 10.0}, {"p99", 100.0}}},
                                                             {"flops_per_s", 1e12},
                                                             {"ceiling_flops_per_s", 8e12},
                                                             {"memory_bytes", 1 << 30},
                                                             {"val_loss", 2.5},
                                                             {"target_loss", 2.0},
                                                             {"target_reached", false},
                                                             {"time_to_target_ms", nullptr}});
    }
    std::string write_losses(const char* losses) {
        std::ofstream(path("losses.json")) << R"({"losses":)" << losses << "}";
        return path("losses.json");
    }

    const TempDir dir_;
};

TEST_F(CheckRunTest, FiguresAreThoseOfTheMedianStep) {
    const Checked checked = check_run({.folder = path("run"), .floor_ms = 4});
    EXPECT_EQ(checked.failure, "");
    EXPECT_DOUBLE_EQ(checked.figures.at("step_ms"), 10);
    EXPECT_DOUBLE_EQ(checked.figures.at("tokens_per_s"), 102400);
    EXPECT_DOUBLE_EQ(checked.figures.at("share_of_floor"), 0.4);
    // 8 steps in 350 ms ran at 1e12 FLOP/s: a step of 10 ms runs at 4.375 times that rate.
    EXPECT_DOUBLE_EQ(checked.figures.at("tflops"), 4.375);
    EXPECT_DOUBLE_EQ(checked.figures.at("share_of_product"), 4.375 / 8);
}

TEST_F(CheckRunTest, LossesMustAgree) {
    RunCheck check{.folder = path("run"), .losses = write_losses("[5,4.0003]"), .tolerance = 1e-4};
    EXPECT_EQ(check_run(check).failure, "");
    write_losses("[5,4.0005]");
    EXPECT_NE(check_run(check).failure.find("step 1 is 4"), std::string::npos) << check_run(check).failure;
    write_losses("[1,1,1,1,1,1,1,1,1]");  // more than the run has
    EXPECT_NE(check_run(check).failure, "");
    write_losses("[]");
    EXPECT_NE(check_run(check).failure, "");
    check.losses = path("nothing");
    EXPECT_NE(check_run(check).failure.find("not there"), std::string::npos);
}

TEST_F(CheckRunTest, RepetitionsMustBeEqualInEveryBit) {
    write_run("same", {5, 4, 3, 2, 2, 2, 2, 2}, "done");
    write_run("other", {5, 4, 3, 2, 2, 2, 2, 2 + 1e-15}, "done");
    write_run("longer", {5, 4, 3, 2, 2, 2, 2, 2, 2}, "done");
    EXPECT_EQ(check_run({.folder = path("run"), .same_as = path("same/metrics.jsonl")}).failure, "");
    for (const char* name : {"other", "longer", "absent"})
        EXPECT_NE(check_run({.folder = path("run"), .same_as = path(name) + "/metrics.jsonl"}).failure, "")
            << name;
}

TEST_F(CheckRunTest, WhatIsMissingOrUnfinishedFails) {
    EXPECT_NE(check_run({.folder = path("run"), .must_reach_target = true}).failure.find("target 2.0"),
              std::string::npos);
    EXPECT_NE(check_run({.folder = path("absent")}).failure, "");
    write_run("stopped", {5}, "stopped");
    EXPECT_NE(check_run({.folder = path("stopped")}).failure.find("stopped"), std::string::npos);
    fs::remove(path("run") + "/metrics.jsonl");
    EXPECT_NE(check_run({.folder = path("run")}).failure.find("metrics.jsonl"), std::string::npos);
}

TEST_F(CheckRunTest, PeersPassOnlyWhereTheyWereTimed) {
    const auto failure_of = [&](const char* json) {
        std::ofstream(path("peer.json")) << json;
        return check_peers(path("peer.json")).failure;
    };
    EXPECT_EQ(failure_of(R"({"result":"passed","peers":[{"name":"x"}],"failures":[]})"), "");
    EXPECT_EQ(failure_of(R"({"result":"passed","peers":[],"failures":[]})"), "nothing was timed");
    EXPECT_EQ(failure_of(R"({"result":"failed","peers":[],"failures":["the losses differ"]})"),
              "the losses differ");
    EXPECT_NE(failure_of("{"), "");
    EXPECT_NE(check_peers(path("absent")).failure, "");
}

TEST_F(CheckRunTest, AFailedRunFailsItsStepAndKeepsItsFigures) {
    StepEnd end;
    end.stage = "train";
    end.name = "kjv";
    const Checked checked = check_run({.folder = path("run"), .must_reach_target = true});
    end.run = checked.figures;
    end.failure = checked.failure;
    const Json record = step_record(end);
    EXPECT_EQ(record.at("status"), "failed");
    const Json report = merge_records({record.dump()}, {"train"});
    EXPECT_EQ(report.at("result"), "failed");
    EXPECT_NE(
        print_report(report).find("train kjv                                            102400    10.000"),
        std::string::npos)
        << print_report(report);
}

}  // namespace
}  // namespace speedrun::bench
