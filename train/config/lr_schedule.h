// The learning rate as a function of the step.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace speedrun {

// Factor of the learning rate at a step of the run, from 0: the product of the lr_factor of the stage, a linear warm-up
// min(1, (step+1)/warmup_steps), and a cooldown. Over the last cooldown_fraction of schedule.steps the cooldown falls from
// 1 to final_lr_fraction (linear or half a cosine; "constant" never falls), which every later step has.
double learning_rate_factor(const ScheduleConfig& schedule, int64_t step);

}  // namespace speedrun
