// What `plan --gpu --timeline` says: a step of many ranks in time.
#pragma once

#include <optional>

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/timeline/step_timeline.h"

namespace speedrun {

Network network_of(const PlanOptions& options);

// The GPU that --gpu and --measured name, for what this config computes in. Usage and data errors: theirs.
class PlannedGpu {
  public:
    PlannedGpu(const PlanOptions& options, const Config& config);
    const GpuModel& model() const { return model_; }
    const MeasuredKernels* report() const { return report_ ? &*report_ : nullptr; }

  private:
    GpuModel model_;
    std::optional<MeasuredKernels> report_;
};

// The step of a config of one stage, as one of these ranks enqueues it.
int print_timeline(const PlanOptions& options, const Config& stage, const Ranks& ranks);

}  // namespace speedrun
