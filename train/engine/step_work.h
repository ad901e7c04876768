// The floating-point operations of a step.
#pragma once

#include <cstdint>

namespace speedrun {

// Of one rank. The model's own, which utilisation is measured by (MFU: Chowdhery et al. 2022, appendix B), and what
// activation checkpointing adds to them.
struct StepWork {
    int64_t flops = 0, recomputed_flops = 0;
};

}  // namespace speedrun
