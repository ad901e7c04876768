#include "train/checkpoint/run_position.h"

#include <cmath>

#include "kernels/device/error.h"
#include "train/config/lr_schedule.h"

namespace speedrun {

namespace {

constexpr double kLrTolerance = 1e-9;  // relative; another C library may round cosines differently

void check_step(const CheckpointInfo& info, const Config& config, const std::string& path) {
    if (info.step > config.schedule.total_steps())
        throw_data("{}: step {} is after the last step of its config's schedule, {}", path, info.step,
                   config.schedule.total_steps());
    for (size_t i = 0; i < config.optimizers.groups.size(); ++i) {
        const OptimizerGroupConfig& group = config.optimizers.groups[i];
        if (!begins_period(group, info.step))
            throw_data("{}: step {} is not a multiple of optimizers.groups[{}].every {}", path, info.step, i,
                       group.every);
    }
}

}  // namespace

void set_position(CheckpointInfo& info, const Config& config, int64_t steps) {
    const ScheduleConfig& schedule = config.schedule;
    const int64_t stage = schedule.stage_of(steps);
    const Config there = config.in_stage(stage);
    info.step = steps;
    info.tokens = config.tokens_before(steps);
    info.next_row =
        (steps - schedule.first_step(stage)) * (there.batch.tokens_per_step / there.batch.sequence_length);
    info.seed = config.seed;
    info.next_lr_factor = learning_rate_factor(schedule, steps);
}

void check_position(const CheckpointInfo& info, const Config& config, const std::string& path) {
    check_step(info, config, path);
    CheckpointInfo expected;
    set_position(expected, config, info.step);
    const auto check = [&](const char* key, auto actual, auto right, bool equal) {
        if (!equal)
            throw_data("{}: {} is {}, expected {} after {} steps of its config", path, key, actual, right,
                       info.step);
    };
    check("tokens", info.tokens, expected.tokens, info.tokens == expected.tokens);
    check("loader.next_row", info.next_row, expected.next_row, info.next_row == expected.next_row);
    check("seed", info.seed, expected.seed, info.seed == expected.seed);
    check("schedule.next_lr_factor", info.next_lr_factor, expected.next_lr_factor,
          std::abs(info.next_lr_factor - expected.next_lr_factor) <=
              kLrTolerance * std::abs(expected.next_lr_factor));
}

}  // namespace speedrun
