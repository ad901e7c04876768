// Times training steps of a config, operation by operation: what `speedrun bench` prints.
#pragma once

#include <string>

#include "kernels/runtime/runtime.h"
#include "train/config/config.h"
#include "train/engine/step_work.h"
#include "train/runlog/op_profile.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct StepBenchOptions {
    int64_t steps = 10;     // timed with each operation's events, and as many without
    int64_t warmup = 3;     // before them
    CeilingSizes ceilings;  // 0: those of the device
};

struct StepBench {
    std::string data;          // "dataset", or "synthetic" where the shards are not there
    StepProfile profile;       // of steps with events around each operation
    double plain_step_ms = 0;  // of steps without: what training takes
    Ceilings ceilings;         // the best of before and after the steps
    StepWork work;             // as the plan has it: without the optimizer's
    int64_t memory_bytes = 0;  // of the device's memory table, as the plan has it
    // Resident memory of the process when the first steps had run and no ceiling had been measured, less what
    // it held before it built anything. On a CPU the memory that was really touched, beside memory_bytes.
    int64_t resident_bytes = 0;
    std::string limits;  // what the figures leave out, one sentence; empty: nothing
};

// Builds the config's whole machine on this runtime, which nothing else uses, and trains: warm-up, half of
// the steps without events, all of them with, the other half without. Each of the three parts is led in by a
// step that does not count. One rank. Throws as a run does.
StepBench bench_steps(const Config& config, Runtime& runtime, const Ranks& ranks,
                      const StepBenchOptions& options);

}  // namespace speedrun
