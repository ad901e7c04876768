// Times a config's training steps operation by operation, for `speedrun bench`.
#pragma once

#include <string>

#include "kernels/runtime/runtime.h"
#include "train/config/config.h"
#include "train/engine/step_work.h"
#include "train/runlog/op_profile.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct StepBenchOptions {
    int64_t steps = 10;  // number of steps timed with events, and again without
    int64_t warmup = 3;  // untimed steps before
    PeakSizes peaks;     // 0: the device's defaults
};

struct StepBench {
    std::string data;          // "dataset", or "synthetic" if the shards do not exist
    StepProfile profile;       // steps with events around each operation
    double plain_step_ms = 0;  // steps without events, as in training
    Peaks peaks;               // best measured before and after the steps
    StepWork work;             // without the optimizer's, as in the plan
    int64_t memory_bytes = 0;  // total of the device's memory table, as in the plan
    // Resident memory of the process after the first steps and before any peak is measured, minus its memory before the
    // engine was built. On a CPU this is the memory actually touched, to compare with memory_bytes.
    int64_t resident_bytes = 0;
    std::string limits;  // sentence on parts that the figures exclude; empty: none
};

// Builds the config's whole engine on this runtime, which must be otherwise unused, and trains: warm-up, half of the
// steps without events, all steps with events, the other half without. Each part starts with an untimed step. One rank.
// Throws as a run does.
StepBench bench_steps(const Config& config, Runtime& runtime, const Ranks& ranks,
                      const StepBenchOptions& options);

}  // namespace speedrun
