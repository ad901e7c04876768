// What a run will hold, known before it holds anything: the whole machine is built on a device that allocates
// and runs nothing, so shapes, memory and operations are the run's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/engine/step_work.h"
#include "train/model/graph/busiest_step.h"
#include "train/sharding/ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

inline constexpr double kMiB = 1024.0 * 1024.0;

struct MemoryPlan {
    std::string table;  // of the device's memory of one rank, by category
    int64_t bytes = 0;
    // Bytes of host memory: snapshots of checkpoints, final weights, batches, the program.
    int64_t host_bytes = 0;
    BusiestStep busiest_step;           // in the memory of activations and their gradients
    std::vector<StepWork> work;         // of a step, by stage
    std::vector<CollectiveRow> values;  // what ranks that share rows send in a microbatch, by stage
    DeviceKind device = DeviceKind::cpu;
    DType real = DType::f32;

    // Bytes of the device's memory; a CPU has all of it on the host.
    int64_t needed() const { return bytes + (device == DeviceKind::cpu ? host_bytes : 0); }
};

MemoryPlan plan_memory(const Config& config, const Ranks& ranks = {});

// The largest batch.microbatch_tokens whose plan needs at most this many bytes; 0 if none does, or if it (or the
// sequences' length) differs by stage. Every value tried divides a rank's share of tokens_per_step into whole
// sequences.
int64_t largest_microbatch(Config config, int64_t bytes, const Ranks& ranks = {});

// Would the run fit into so many bytes, if its blocks kept nothing but their input?
bool fits_with_full_checkpointing(Config config, int64_t bytes, const Ranks& ranks = {});

// Throws a usage error, with the table and the setting that would fit, if the run needs more memory than this
// rank's share of what the device has left.
void require_memory(const Config& config, const Device& device, const Ranks& ranks = {});

// Collective over the ranks if they are a world: its ranks on one host share cores and GPUs.
RuntimeOptions runtime_options(const Config& config, const Ranks& ranks = {});
// Options of a device that allocates and runs nothing.
RuntimeOptions dry_runtime_options(const Config& config);

}  // namespace speedrun
