// Learning rate and momentum over the steps of a run, at the corners.
#include "train/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace speedrun {
namespace {

ScheduleConfig schedule(Decay decay, int64_t warmup = 0) {
    return {.steps = 100,
            .warmup_steps = warmup,
            .decay = decay,
            .cooldown_fraction = 0.4,
            .final_lr_fraction = 0.1,
            .stages = {}};
}

TEST(LearningRateTest, WarmUpEndsAtTheTop) {
    const ScheduleConfig s = schedule(Decay::linear, 10);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 0), 0.1);  // never a step of nothing
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 4), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 9), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 10), 1.0);
}

TEST(LearningRateTest, ConstantStaysConstant) {
    for (int64_t step : {0, 59, 60, 99})
        EXPECT_EQ(learning_rate_factor(schedule(Decay::constant), step), 1.0) << step;
}

// Steps 60 … 99 are the last 40 %: 40 left is still the top, and the value after the last step would be the
// floor.
TEST(LearningRateTest, LinearCooldown) {
    const ScheduleConfig s = schedule(Decay::linear);
    EXPECT_EQ(learning_rate_factor(s, 0), 1.0);
    EXPECT_EQ(learning_rate_factor(s, 60), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 61), 0.1 + 0.9 * 39 / 40);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 80), 0.55);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 99), 0.1 + 0.9 / 40);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 100), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 150), 0.1);
}

TEST(LearningRateTest, CosineCooldown) {
    const ScheduleConfig s = schedule(Decay::cosine);
    EXPECT_EQ(learning_rate_factor(s, 60), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 70),
                     0.1 + 0.9 * (0.5 + 0.5 * std::sqrt(0.5)));  // a quarter of the way
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 80), 0.55);
    EXPECT_DOUBLE_EQ(learning_rate_factor(s, 100), 0.1);
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

TEST(LearningRateTest, WarmUpIntoTheCooldownNeverExceedsTheTop) {
    const ScheduleConfig s = schedule(Decay::linear, 80);
    for (int64_t step = 0; step < 100; ++step) EXPECT_LE(learning_rate_factor(s, step), 1.0) << step;
}

TEST(MuonMomentumTest, LinearThenConstant) {
    OptimizerGroupConfig group;
    group.momentum_start = 0.85;
    group.momentum = 0.95;
    group.momentum_warmup_steps = 300;
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, 0), 0.85);
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, 150), 0.90);
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, 300), 0.95);
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, 10000), 0.95);
    group.momentum_warmup_steps = 0;
    EXPECT_DOUBLE_EQ(muon_momentum_at(group, 0), 0.95);
}

}  // namespace
}  // namespace speedrun
