// Prints `plan --gpu --timeline`: a step of many ranks in time.
#pragma once

#include <optional>

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/timeline/step_timeline.h"

namespace speedrun {

// Returns the network of --network, or the default one of a GPU.
Network network_of(const PlanOptions& options, const GpuModel& gpu);

// The GPU model of --gpu and --measured for this config's compute dtype. Throws the usage and data errors of both options.
class PlannedGpu {
  public:
    PlannedGpu(const PlanOptions& options, const Config& config);
    const GpuModel& model() const { return model_; }
    const MeasuredKernels* report() const { return report_ ? &*report_ : nullptr; }

  private:
    GpuModel model_;
    std::optional<MeasuredKernels> report_;
};

// The step of a config of one stage, as rank 0 enqueues it.
int print_timeline(const PlanOptions& options, const Config& stage, const Ranks& ranks);

}  // namespace speedrun
