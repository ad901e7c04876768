// What a run will hold, known before it holds anything: the whole machine is built on a device that allocates
// and runs nothing, so shapes, memory and operations are the run's own.
#pragma once

#include <cstdint>
#include <string>

#include "train/config/config.h"
#include "train/model/runtime.h"

namespace speedrun {

struct MemoryPlan {
    std::string table;  // of the device's memory, by category
    int64_t bytes = 0;
    int64_t flops_per_step = 0;
    std::string device;  // "cpu", "cuda"
    DType real = DType::f32;
};

MemoryPlan plan_memory(const Config& config);

// The largest batch.microbatch_tokens whose plan needs at most this many bytes; 0 if none does. Every value
// tried divides tokens_per_step into whole sequences.
int64_t largest_microbatch(Config config, int64_t bytes);

// Throws a usage error, with the table and the setting that would fit, if the run needs more memory than the
// device has left.
void require_memory(const Config& config, const Device& device);

RuntimeOptions runtime_options(const Config& config, bool dry = false);

}  // namespace speedrun
