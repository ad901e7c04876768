// FLOPs of a step.
#pragma once

#include <cstdint>

namespace speedrun {

// FLOPs of one rank. flops: the model's, the numerator of MFU (Chowdhery et al. 2022, appendix B). recomputed_flops:
// added by activation checkpointing.
struct StepWork {
    int64_t flops = 0, recomputed_flops = 0;
};

}  // namespace speedrun
