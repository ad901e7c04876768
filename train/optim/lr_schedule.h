// Learning rate, weight decay and momentum as functions of the step.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace speedrun {

// Factor of the learning rate at a step of the run, from 0: the product of the stage's lr_factor, a linear warm-up, min(1,
// (step+1)/warmup_steps), and a cooldown that over the last cooldown_fraction of schedule.steps goes from 1 down
// to final_lr_fraction (linear or half a cosine; "constant" never cools down), which all later steps have.
double learning_rate_factor(const ScheduleConfig& schedule, int64_t step);

// Weight decay of a step at this learning rate, as steps take it: weights shrink by lr times it.
double weight_decay_at(const OptimizerGroupConfig& group, double lr);

// Muon's momentum: linear from momentum_start to momentum over the first momentum_warmup_steps, then momentum, which may
// differ by stage, and linear back towards momentum_start over the last momentum_cooldown_steps: the first of them has
// momentum, and one behind the last would have momentum_start. Where both reach, the smaller share of the way counts.
// step: the optimizer's own, in which both are counted; point: of the run, which says stage and what is left.
double muon_momentum_at(const OptimizerGroupConfig& group, int64_t step, const StagePoint& point = {});

}  // namespace speedrun
