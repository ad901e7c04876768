// Reads the machine before and after each run of an attempt, on all hosts of its ranks, and monitors the GPUs' clocks during
// the run.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "kernels/cuda/device/gpu_clocks.h"
#include "train/comm/communicator.h"
#include "train/config/config.h"
#include "train/runlog/machine_state.h"

namespace speedrun {

// Returns gpu_identity() of this rank's GPU; empty: a CPU. Collective.
std::string gpu_of_rank(World& world, const Config& config);

class MachineWatch {
  public:
    explicit MachineWatch(World& world, NvmlOptions nvml = {}) : world_(world), nvml_(std::move(nvml)) {}
    // gpu: gpu_of_rank(). Collective.
    void begin(const std::string& gpu);
    // Returns the state since begin() of the most disturbed host. The first rank warns once if a GPU's clocks cannot be read.
    // Collective.
    MachineState end();

  private:
    World& world_;
    const NvmlOptions nvml_;
    std::optional<GpuClocks> clocks_;  // this rank's GPU; nullopt: a CPU
    bool warned_ = false;
    std::set<int> cores_;  // cores of all ranks on this host; empty: all
    MachineCounters begin_;
};

}  // namespace speedrun
