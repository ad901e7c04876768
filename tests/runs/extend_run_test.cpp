// Runs that continue with more steps: bitwise the longer run, if both have one learning rate up to the checkpoint.
#include "train/config/extend_run.h"
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::extend_run_test {

// A cooldown over the last half, with AdamW and Muon; a checkpoint after every step.
const Settings kRun = {"model.layers.count=1",
                       "batch.tokens_per_step=128",
                       "batch.microbatch_tokens=64",
                       "checkpoint.every=1",
                       "checkpoint.keep=100",
                       "eval.every=0",
                       "threads=1",
                       "data.val_tokens=300",
                       "device=cpu"};

class ExtendRunTest : public RankRunFixture {
  protected:
    Config make(int steps, const Settings& more = {}) const {
        return config(together({kRun, {fmt::format("schedule.steps={}", steps)}}), more);
    }
    ResumePoint find(const std::string& folder, const std::string& name, const Config& c) const {
        ResumePoint point;
        run_ranks(
            1, [&](World& world) { point = find_resume_point(world, folder, path(name), c, nullptr, true); });
        return point;
    }
    void expect_not_extended(const std::vector<std::string>& parts, const std::string& folder,
                             const Config& c) {
        run_ranks(2, [&](World& world) {
            expect_error(ExitCode::usage, parts,
                         [&] { find_resume_point(world, folder, path("longer"), c, nullptr, true); });
        });
    }
};

TEST_F(ExtendRunTest, EqualsLongerRunBitwise) {
    struct Case {
        int ranks;
        Settings more;
    };
    std::vector<Case> cases = {{1, {}},
                               {2, {by("zero3")}},
                               {1, {"schedule.warmup_steps=3", "schedule.decay=cosine"}},
                               {1, {"data.rows=documents", "schedule.decay=constant"}},
                               {1, {"schedule.final_steps=2"}}};
    if (kSanitized) cases = {{2, {by("zero3")}}};
    int number = 0;
    for (const auto& [ranks, more] : cases) {
        SCOPED_TRACE(more.empty() ? "plain" : more.front());
        const Config before = make(8, more);
        const int64_t extra = before.schedule.final_steps;
        const std::string brief = fmt::format("short{}", number), whole = fmt::format("whole{}", number);
        ++number;
        EXPECT_EQ(train(before, ranks, brief), "");
        EXPECT_EQ(train(make(16, more), ranks, whole), "");
        EXPECT_NE(curve(brief, 5).back(), curve(whole, 5).back());  // the validation after the last step
        const Config after = extend_config(before, 16 + extra);
        EXPECT_EQ(after.schedule.steps, 16);
        for (const int step : {2, 4}) {
            const std::string later = fmt::format("{}_from{}", brief, step);
            EXPECT_EQ(train(after, ranks, later, checkpoint(brief, step), {.extends = true}), "");
            EXPECT_EQ(curve(later), curve(whole, step));
            expect_same_bytes(checkpoint(whole, 16 + extra), checkpoint(later, 16 + extra), ranks);
            EXPECT_EQ(find(checkpoint(brief, step), "another", after).messages, std::vector<std::string>());
        }
    }
}

TEST_F(ExtendRunTest, LastStageGetsLonger) {
    const Settings staged = {"schedule.stages=[3,8]", "batch.sequence_length=[16,32]",
                             "batch.tokens_per_step=[64,128]", "schedule.cooldown_fraction=0.25"};
    const Settings longer = {"schedule.stages=[3,16]", "batch.sequence_length=[16,32]",
                             "batch.tokens_per_step=[64,128]", "schedule.cooldown_fraction=0.25"};
    EXPECT_EQ(train(make(8, staged), 1, "short"), "");
    EXPECT_EQ(train(make(16, longer), 1, "whole"), "");
    for (const int step : {2, 5}) {
        const std::string later = fmt::format("later{}", step);
        const Config after = extend_config(make(8, staged), 16);
        EXPECT_EQ(train(after, 1, later, checkpoint("short", step), {.extends = true}), "");
        EXPECT_EQ(curve(later), curve("whole", step));
    }
}

// An extended run is continued with the same command.
TEST_F(ExtendRunTest, ExtendedRunIsResumed) {
    const Config before = make(8), after = extend_config(before, 16);
    EXPECT_EQ(train(before, 1, "short"), "");
    EXPECT_EQ(train(after, 1, "longer", checkpoint("short", 4), {.extends = true}), "");
    const std::vector<double> expected = curve("longer");
    for (int step = 11; step <= 16; ++step) fs::remove_all(checkpoint("longer", step));
    EXPECT_EQ(find("auto", "longer", after).messages, std::vector<std::string>());
    EXPECT_EQ(train(after, 1, "longer", "auto", {.extends = true}), "");
    EXPECT_EQ(curve("longer"), expected);
}

TEST_F(ExtendRunTest, WarnsInsideOfCooldown) {
    EXPECT_EQ(train(make(8), 1, "short"), "");
    const Config after = extend_config(make(8), 16);
    const ResumePoint point = find(checkpoint("short", 7), "longer", after);
    ASSERT_EQ(point.messages.size(), 1u);
    for (const std::string& part :
         {checkpoint("short", 7) + " is inside of the cooldown", std::string("are equal up to step 5 only"),
          std::string("goes from 0.55 to 1 of the peak"), "such as " + checkpoint("short", 5)})
        EXPECT_THAT(point.messages.front(), HasSubstr(part));
    // Momentum cools down as well.
    const Settings momentum = {"schedule.decay=constant", "optimizers.groups.0.momentum_cooldown_steps=5",
                               "optimizers.groups.0.momentum_warmup_steps=0"};
    EXPECT_EQ(first_difference(make(8, momentum), make(16, momentum), 8), 4);
    EXPECT_EQ(first_difference(make(8), make(16), 3), 3);
}

TEST_F(ExtendRunTest, RefusesWhatCannotContinue) {
    const Settings pieces = {"schedule.stages=[3,8]", "batch.sequence_length=[32,16]",
                             "batch.tokens_per_step=128"};
    EXPECT_EQ(train(make(8), 1, "short"), "");
    EXPECT_EQ(train(make(8, pieces), 1, "pieces"), "");
    expect_not_extended({"its run has 8 steps, and --extend-to is 7: give more steps"},
                        checkpoint("short", 4), make(7));
    expect_not_extended({"optimizers.groups.0.lr: 0.02 there, 0.5 here"}, checkpoint("short", 4),
                        make(16, {"optimizers.groups.0.lr=0.5"}));
    expect_not_extended({"schedule.cooldown_fraction: 0.5 there, 0.2 here"}, checkpoint("short", 4),
                        make(16, {"schedule.cooldown_fraction=0.2"}));
    expect_not_extended({"longer has no checkpoint to extend"}, "auto", make(16));
    expect_not_extended({"step 4 is in the last stage", "from a checkpoint of step 3 or before"},
                        checkpoint("pieces", 4), extend_config(make(8, pieces), 16));
    EXPECT_EQ(find(checkpoint("pieces", 3), "longer", extend_config(make(8, pieces), 16)).messages.size(),
              0u);
    expect_error(ExitCode::usage, {"--extend-to 2: schedule.final_steps alone are 2"},
                 [&] { extend_config(make(8, {"schedule.final_steps=2"}), 2); });
    expect_error(ExitCode::usage, {"schedule.warmup_steps 5 exceeds schedule.steps 4"},
                 [&] { extend_config(make(8, {"schedule.warmup_steps=5"}), 4); });
}

}  // namespace speedrun::testing::extend_run_test
