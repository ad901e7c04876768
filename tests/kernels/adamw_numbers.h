// Scalars of an AdamW step, for tests.
#pragma once

#include "kernels/ops/optimizer.h"

namespace speedrun::testing {

// The caller sets the tensors.
inline op::AdamwStep adamw_numbers(int64_t step = 1) {
    return {.parameter = {},
            .master = {},
            .first_moment = {},
            .second_moment = {},
            .grad = {},
            .grad_scale = {},
            .learning_rate = 0.01f,
            .beta1 = 0.65f,
            .beta2 = 0.95f,
            .epsilon = 1e-8f,
            .weight_decay = 0.1f,
            .step = step};
}

}  // namespace speedrun::testing
