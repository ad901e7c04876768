#include "train/config/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// share: 1 where the cooldown starts, 0 after the last step.
double shape_of(Decay decay, double share) {
    switch (decay) {
        case Decay::linear:
            return share;
        case Decay::cosine:
            return 0.5 - 0.5 * std::cos(std::numbers::pi * share);
        case Decay::constant:  // cools down nothing
            break;
    }
    throw_internal("a decay has no shape");
}

}  // namespace

double learning_rate_factor(const ScheduleConfig& schedule, int64_t step) {
    double warm_up = schedule.lr_factor.at(schedule.point_of(step));
    if (step < schedule.warmup_steps)
        warm_up *= static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
    const double cooldown = schedule.cooldown_fraction * static_cast<double>(schedule.steps);
    const double left = static_cast<double>(schedule.steps - step);
    if (schedule.decay == Decay::constant || cooldown <= 0 || left >= cooldown) return warm_up;
    const double shape = shape_of(schedule.decay, std::max(0.0, left / cooldown));
    return warm_up * (schedule.final_lr_fraction + (1.0 - schedule.final_lr_fraction) * shape);
}

}  // namespace speedrun
