// Predicts the memory of a run. Builds the whole engine on a device that neither allocates nor runs anything, so
// shapes, memory and operations equal the run's.
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
    std::string table;  // device memory of one rank, by category
    int64_t bytes = 0;
    // host memory, bytes: snapshots of checkpoints, final weights, batches, the program
    int64_t host_bytes = 0;
    int64_t nccl_bytes = 0;      // device memory of NCCL, assumed; the run measures it
    BusiestStep busiest_step;    // largest use of memory for activations and their gradients
    std::vector<StepWork> work;  // per step; index: stage
    // collectives of values per microbatch, between ranks that share rows; index: stage
    std::vector<CollectiveRow> values;
    DeviceKind device = DeviceKind::cpu;
    DType real = DType::f32;

    // Bytes of device memory with nccl_bytes; on a CPU including host_bytes.
    int64_t needed() const { return bytes + nccl_bytes + (device == DeviceKind::cpu ? host_bytes : 0); }
};

MemoryPlan plan_memory(const Config& config, const Ranks& ranks = {});

// Returns the largest batch.microbatch_tokens with a plan of at most `bytes`. Returns 0 if there is none, or if
// microbatch or sequence length differ by stage. Only values that divide a rank's share of tokens_per_step into whole
// sequences are tried.
int64_t largest_microbatch(Config config, int64_t bytes, const Ranks& ranks = {});

// True if the run fits into `bytes` with full activation checkpointing.
bool fits_with_full_checkpointing(Config config, int64_t bytes, const Ranks& ranks = {});

// Throws a usage error if the run needs more than this rank's share of the device's free memory. The error has the
// table and the setting that would fit.
void require_memory(const Config& config, const Device& device, const Ranks& ranks = {});

// Collective if the ranks are a world: ranks on one host share cores and GPUs.
RuntimeOptions runtime_options(const Config& config, const Ranks& ranks = {});
// Options of a device that neither allocates nor runs anything.
RuntimeOptions dry_runtime_options(const Config& config);

}  // namespace speedrun
