#include "train/config/extend_run.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

bool same_at(const Config& before, const Config& after, int64_t step) {
    if (learning_rate_factor(before.schedule, step) != learning_rate_factor(after.schedule, step))
        return false;
    for (const OptimizerGroupConfig& group : before.optimizers.groups) {
        const auto momentum = [&](const Config& config) {
            return muon_momentum_at(group, group.muon, updates_before(group, step),
                                    config.schedule.point_of(step));
        };
        if (group.type == OptimizerKind::muon && momentum(before) != momentum(after)) return false;
        // Extensions, such as the average, act at the last update.
        const auto is_last = [&](const Config& config) {
            return updates_in_last(group, config.schedule.point_of(step).left) == 1;
        };
        if (!group.extensions.all().empty() && is_last(before) != is_last(after)) return false;
    }
    return true;
}

}  // namespace

Config extend_config(Config config, int64_t total_steps) {
    ScheduleConfig& schedule = config.schedule;
    if (total_steps <= schedule.final_steps)
        throw_usage("--extend-to {}: schedule.final_steps alone are {}", total_steps, schedule.final_steps);
    schedule.steps = total_steps - schedule.final_steps;
    if (!schedule.stages.empty()) schedule.stages.back() = total_steps;
    config.validate();
    return config;
}

int64_t first_difference(const Config& before, const Config& after, int64_t steps) {
    int64_t same = 0,
            different = steps;  // all steps below `same` are alike; `different` is not, or is the end
    while (same < different) {
        const int64_t middle = same + (different - same) / 2;
        if (same_at(before, after, middle))
            same = middle + 1;
        else
            different = middle;
    }
    return same;
}

// Rows of the last stage that are pieces of longer windows are ordered by the number of windows in the stage (StreamRows).
void expect_extendable(const Config& before, const Config& after, int64_t step, const std::string& name) {
    const int64_t last = before.schedule.num_stages() - 1;
    int64_t longest = 0;
    for (int64_t stage = 0; stage <= last; ++stage)
        longest = std::max<int64_t>(longest, before.in_stage(stage).batch.sequence_length);
    const bool pieces = before.data.rows == RowKind::stream && before.data.shuffle &&
                        longest / before.in_stage(last).batch.sequence_length > 1;
    const int64_t first = before.schedule.first_step(last);
    if (pieces && step > first)
        throw_usage(
            "{}: step {} is in the last stage. Its rows are pieces of longer ones, in an order that depends on its length: extend "
            "from a checkpoint of step {} or before",
            name, step, first);
    const int64_t there = before.schedule.total_steps(), here = after.schedule.total_steps();
    if (here < there)
        throw_usage("{}: its run has {} steps, and --extend-to is {}: give more steps than it has", name,
                    there, here);
}

}  // namespace speedrun
