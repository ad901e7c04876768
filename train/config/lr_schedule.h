// Section `schedule`: the stages of a run, and the learning rate as a function of the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "kernels/device/error.h"
#include "train/fields/choice.h"
#include "train/fields/field_visitor.h"
#include "train/fields/scheduled.h"

namespace speedrun {

enum class Decay : uint8_t { linear, cosine, constant };
template <>
inline constexpr Word<Decay> kWords<Decay>[] = {
    {"linear", Decay::linear}, {"cosine", Decay::cosine}, {"constant", Decay::constant}};

struct ScheduleConfig {
    int64_t steps = 1000;     // with warm-up and cooldown
    int64_t final_steps = 0;  // after them, at the last learning rate
    int64_t warmup_steps = 0;
    Decay decay = Decay::linear;
    double cooldown_fraction = 0.5;
    double final_lr_fraction = 0.1;
    std::vector<int64_t> stages;  // end of each stage; empty: one stage
    Scheduled<double> lr_factor = 1;
    bool scale_final_lr = true;
    void fields(FieldVisitor& v) {
        v.field("steps", steps, "optimizer steps of the run without final_steps", {0, 1e12});
        v.field("final_steps", final_steps,
                "further steps after the cooldown, at its last learning rate; 0: none", {0, 1e12});
        v.field("warmup_steps", warmup_steps, "steps of linear warm-up", {0, 1e12});
        v.choice("decay", decay, "shape of the cooldown");
        v.field("cooldown_fraction", cooldown_fraction,
                "last share of schedule.steps, in which the learning rate decays", {0, 1});
        v.field("final_lr_fraction", final_lr_fraction, "learning rate at the end, as a share of the peak",
                {0, 1});
        v.field(
            "stages", stages,
            "number of steps of the run at the end of each stage; empty: one stage. A scheduled key takes a number, "
            "or a list of one entry per stage: a number or [from, to], linear over the stage",
            {1, 1e12});
        v.field("lr_factor", lr_factor, "factor of every learning rate, in addition to warm-up and cooldown",
                {0, 1e3});
        v.field("scale_final_lr", scale_final_lr,
                "multiply the learning rate at the end of the cooldown by lr_factor too; false: the cooldown "
                "ends at final_lr_fraction");
    }
    // Throws a usage error for stages that do not increase to the last step, and for final steps without a cooldown.
    void validate() const {
        if (warmup_steps > steps)
            throw_usage("schedule.warmup_steps {} exceeds schedule.steps {}", warmup_steps, steps);
        check_final_steps();
        constexpr size_t kMaxStages = 1000;  // each one is validated as a config
        if (stages.size() > kMaxStages)
            throw_usage("schedule.stages has {} entries, at most {}", stages.size(), kMaxStages);
        for (size_t i = 0; i < stages.size(); ++i) {
            if (stages[i] > (i == 0 ? 0 : stages[i - 1])) continue;
            throw_usage("schedule.stages[{}] is {}, expected more than {}: a stage has at least one step", i,
                        stages[i], i == 0 ? 0 : stages[i - 1]);
        }
        if (!stages.empty() && stages.back() != total_steps()) {
            throw_usage(
                "schedule.stages ends after step {}, expected schedule.steps{}, {}: change one of them",
                stages.back(), final_steps > 0 ? " + schedule.final_steps" : "", total_steps());
        }
    }

    int64_t total_steps() const { return steps + final_steps; }  // number of steps of the run
    int64_t num_stages() const { return stages.empty() ? 1 : static_cast<int64_t>(stages.size()); }
    int64_t first_step(int64_t stage) const {
        return stage == 0 ? 0 : stages[static_cast<size_t>(stage) - 1];
    }
    int64_t end_step(int64_t stage) const {
        return stages.empty() ? total_steps() : stages[static_cast<size_t>(stage)];
    }
    int64_t stage_of(int64_t step) const {
        const auto stage = std::upper_bound(stages.begin(), stages.end(), step) - stages.begin();
        return std::min<int64_t>(stage, num_stages() - 1);
    }
    StagePoint point_of(int64_t step) const {
        const int64_t stage = stage_of(step), first = first_step(stage), count = end_step(stage) - first;
        StagePoint point{.stage = stage, .left = std::max<int64_t>(0, total_steps() - step)};
        if (count > 0)
            point.share = std::min(1.0, static_cast<double>(step - first) / static_cast<double>(count));
        return point;
    }

  private:
    void check_final_steps() const {
        if (final_steps == 0) return;
        if (decay == Decay::constant || cooldown_fraction == 0 || steps == 0) {
            throw_usage(
                "schedule.final_steps {} are steps after a cooldown, but there is none (schedule.steps {}, decay {}, "
                "cooldown_fraction {}): add them to schedule.steps, or set a cooldown",
                final_steps, steps, word_of(decay), cooldown_fraction);
        }
        if (final_lr_fraction == 0) {
            throw_usage(
                "schedule.final_steps {} would train at a learning rate of 0: set schedule.final_lr_fraction above 0, or "
                "schedule.final_steps to 0",
                final_steps);
        }
    }
};

// Returns the share of the learning rate that remains. share: 1 at the start of the cooldown, 0 after the last step.
inline double shape_of(Decay decay, double share) {
    switch (decay) {
        case Decay::linear:
            return share;
        case Decay::cosine:
            return 0.5 - 0.5 * std::cos(std::numbers::pi * share);
        case Decay::constant:  // has no cooldown
            break;
    }
    throw_internal("a decay has no shape");
}

// Returns the factor of the learning rate at a step of the run, from 0: the product of the lr_factor f of the stage, a linear
// warm-up min(1, (step+1)/warmup_steps), and a cooldown. Over the last cooldown_fraction of schedule.steps the cooldown falls
// from 1 to final_lr_fraction (linear or half a cosine; "constant" never falls), which every later step has. Without
// scale_final_lr it falls from 1 to final_lr_fraction / f.
inline double learning_rate_factor(const ScheduleConfig& schedule, int64_t step) {
    double warm_up = 1;
    if (step < schedule.warmup_steps)
        warm_up = static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
    const double factor = schedule.lr_factor.at(schedule.point_of(step)), top = factor * warm_up;
    const double cooldown = schedule.cooldown_fraction * static_cast<double>(schedule.steps);
    const double left = static_cast<double>(schedule.steps - step);
    if (schedule.decay == Decay::constant || cooldown <= 0 || left >= cooldown) return top;
    const double shape = shape_of(schedule.decay, std::max(0.0, left / cooldown)),
                 end = schedule.final_lr_fraction;
    if (!schedule.scale_final_lr) return warm_up * (factor * shape + end * (1.0 - shape));
    return top * (end + (1.0 - end) * shape);
}

}  // namespace speedrun
