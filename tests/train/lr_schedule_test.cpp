// Learning rate and momentum over the steps of a run, at the boundaries.
#include "train/config/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/config/config.h"

namespace speedrun::lr_schedule_test {

ScheduleConfig schedule(Decay decay, int64_t warmup = 0) {
    return {.steps = 100,
            .warmup_steps = warmup,
            .decay = decay,
            .cooldown_fraction = 0.4,
            .final_lr_fraction = 0.1,
            .stages = {}};
}

void expect_factors(const ScheduleConfig& s, const std::vector<std::pair<int64_t, double>>& factors) {
    for (const auto& [step, factor] : factors)
        EXPECT_DOUBLE_EQ(learning_rate_factor(s, step), factor) << step;
}

TEST(LearningRateTest, WarmUpEndsAtTheTop) {  // the first rate is not 0
    expect_factors(schedule(Decay::linear, 10), {{0, 0.1}, {4, 0.5}, {9, 1}, {10, 1}});
}

TEST(LearningRateTest, ConstantStaysConstant) {
    expect_factors(schedule(Decay::constant), {{0, 1}, {59, 1}, {60, 1}, {99, 1}});
}

// Steps 60 … 99 are the last 40 %. Step 60 still has the full rate; step 100 would have the final one.
TEST(LearningRateTest, LinearCooldown) {
    expect_factors(schedule(Decay::linear), {{0, 1},
                                             {60, 1},
                                             {61, 0.1 + 0.9 * 39 / 40},
                                             {80, 0.55},
                                             {99, 0.1 + 0.9 / 40},
                                             {100, 0.1},
                                             {150, 0.1}});
}

TEST(LearningRateTest, CosineCooldown) {
    const double quarter = 0.1 + 0.9 * (0.5 + 0.5 * std::sqrt(0.5));
    expect_factors(schedule(Decay::cosine), {{60, 1}, {70, quarter}, {80, 0.55}, {100, 0.1}});
}

// The second half of 2205 steps decays to 0.1. 40 more steps stay at 0.1.
TEST(LearningRateTest, FinalStepsStayWhereTheCooldownEnds) {
    for (const Decay decay : {Decay::linear, Decay::cosine}) {
        ScheduleConfig s{
            .steps = 2205, .final_steps = 40, .decay = decay, .final_lr_fraction = 0.1, .stages = {}};
        EXPECT_EQ(s.total_steps(), 2245);
        EXPECT_EQ(learning_rate_factor(s, 1102), 1.0);
        EXPECT_LT(learning_rate_factor(s, 1103), 1.0);
        EXPECT_GT(learning_rate_factor(s, 2204), 0.1);
        for (const int64_t step : {2205, 2206, 2244}) EXPECT_DOUBLE_EQ(learning_rate_factor(s, step), 0.1);
        ScheduleConfig without = s;
        without.final_steps = 0;
        for (int64_t step = 0; step < s.steps; ++step)
            EXPECT_EQ(learning_rate_factor(s, step), learning_rate_factor(without, step)) << step;
        s.lr_factor = 0.5;
        EXPECT_DOUBLE_EQ(learning_rate_factor(s, 2230), 0.05);
    }
}

TEST(LearningRateTest, CooldownFromTheStartAndNone) {
    ScheduleConfig s = schedule(Decay::linear);
    s.cooldown_fraction = 1;
    s.final_lr_fraction = 0;
    EXPECT_EQ(learning_rate_factor(s, 0), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 99), 0.01);
    s.cooldown_fraction = 0;
    EXPECT_EQ(learning_rate_factor(s, 99), 1.0);
    s.steps = 0;
    EXPECT_EQ(learning_rate_factor(s, 0), 1.0);
}

// Record 92 of modded-nanogpt: factor·(1−t) + 0.30·t with t = clip((step − 234)/940, 0, 1) for every factor of a stage.
TEST(LearningRateTest, TheFinalRateMayBeThatOfEveryFactor) {
    ScheduleConfig s{.steps = 1174,
                     .final_steps = 20,
                     .cooldown_fraction = 940.0 / 1174,
                     .final_lr_fraction = 0.3,
                     .stages = {320, 681, 1107, 1194},
                     .scale_final_lr = false};
    const double factors[] = {1, 1.52, 1.73, 1.58};
    s.lr_factor = Scheduled<double>({{1, 1}, {1.52, 1.52}, {1.73, 1.73}, {1.58, 1.58}});
    for (int64_t step = 0; step < s.total_steps(); ++step) {
        const double t = std::clamp(static_cast<double>(step - 234) / 940, 0.0, 1.0),
                     factor = factors[s.stage_of(step)];
        EXPECT_NEAR(learning_rate_factor(s, step), factor * (1 - t) + 0.3 * t, 1e-12) << step;
    }
    ScheduleConfig scaled = s;
    scaled.scale_final_lr = true;
    EXPECT_NEAR(learning_rate_factor(scaled, 1193), 1.58 * 0.3, 1e-12);
    s.lr_factor = scaled.lr_factor = 1;  // nothing to scale
    for (int64_t step = 0; step < s.total_steps(); ++step)
        EXPECT_NEAR(learning_rate_factor(s, step), learning_rate_factor(scaled, step), 1e-12) << step;
}

TEST(LearningRateTest, WarmUpIntoTheCooldownNeverExceedsTheTop) {
    const ScheduleConfig s = schedule(Decay::linear, 80);
    for (int64_t step = 0; step < 100; ++step) EXPECT_LE(learning_rate_factor(s, step), 1.0) << step;
}

OptimizerGroupConfig muon_group(double start, double end) {
    OptimizerGroupConfig group;
    group.muon.momentum_start = start;
    group.muon.momentum = end;
    group.muon.momentum_warmup_steps = 300;
    return group;
}

TEST(MuonMomentumTest, LinearThenConstant) {
    OptimizerGroupConfig group = muon_group(0.85, 0.95);
    for (const auto& [step, momentum] : {std::pair{0, 0.85}, {150, 0.90}, {300, 0.95}, {10000, 0.95}})
        EXPECT_DOUBLE_EQ(muon_momentum_at(group, group.muon, step), momentum) << step;
    group.muon.momentum_warmup_steps = 0;
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, group.muon, 0), 0.95);
}

// Last 50 of 2245 steps: from 0.95 at step 2195 towards 0.85, reached at step 2245 after the run's end.
TEST(MuonMomentumTest, CoolsDownOverTheLastSteps) {
    const ScheduleConfig schedule{.steps = 2245, .stages = {}};
    OptimizerGroupConfig group = muon_group(0.85, 0.95);
    group.muon.momentum_cooldown_steps = 50;
    const auto at = [&](int64_t step) {
        return muon_momentum_at(group, group.muon, step, schedule.point_of(step));
    };
    EXPECT_DOUBLE_EQ(at(0), 0.85);
    EXPECT_DOUBLE_EQ(at(150), 0.90);
    for (const int64_t step : {300, 2000, 2195}) EXPECT_EQ(at(step), 0.95) << step;
    EXPECT_DOUBLE_EQ(at(2196), 0.95 - 0.1 * 1 / 50);
    EXPECT_DOUBLE_EQ(at(2220), 0.90);
    EXPECT_DOUBLE_EQ(at(2244), 0.95 - 0.1 * 49 / 50);
    EXPECT_DOUBLE_EQ(at(2245), 0.85);
    EXPECT_DOUBLE_EQ(at(3000), 0.85);
    group.muon.momentum_cooldown_steps = 0;
    EXPECT_EQ(at(2244), 0.95);

    group.muon.momentum_cooldown_steps = 50;  // final steps are included
    const ScheduleConfig longer{.steps = 2205, .final_steps = 40, .stages = {}};
    for (const int64_t step : {0, 2195, 2196, 2244})
        EXPECT_EQ(muon_momentum_at(group, group.muon, step, longer.point_of(step)), at(step)) << step;
}

// A run shorter than warm-up plus cooldown: momentum falls before it reaches its maximum.
TEST(MuonMomentumTest, WarmUpMeetsCooldown) {
    const ScheduleConfig schedule{.steps = 10, .stages = {}};
    OptimizerGroupConfig group = muon_group(0, 1);
    group.muon.momentum_warmup_steps = 10;
    group.muon.momentum_cooldown_steps = 10;
    const double expected[] = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2, 0.1};
    for (int64_t step = 0; step < 10; ++step)
        EXPECT_DOUBLE_EQ(muon_momentum_at(group, group.muon, step, schedule.point_of(step)), expected[step])
            << step;
}

// With `every: 3` the cooldown of 2 counts the optimizer's ten own steps: its last two are steps 26 and 29 of the
// run.
TEST(MuonMomentumTest, CooldownCountsTheOptimizersOwnSteps) {
    OptimizerGroupConfig group = muon_group(0, 1);
    group.muon.momentum_warmup_steps = 0;
    group.muon.momentum_cooldown_steps = 2;
    group.every = 3;
    for (const int64_t steps : {30, 31, 32}) {
        const ScheduleConfig schedule{.steps = steps, .stages = {}};
        const auto at = [&](int64_t own) {
            return muon_momentum_at(group, group.muon, own,
                                    schedule.point_of(own * group.every + group.every - 1));
        };
        EXPECT_EQ(at(7), 1) << steps;
        EXPECT_EQ(at(8), 1) << steps << ": the first of the two";
        EXPECT_EQ(at(9), 0.5) << steps;
    }
}

}  // namespace speedrun::lr_schedule_test
