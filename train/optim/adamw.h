// AdamW: two f32 moments per element (Loshchilov & Hutter 2019, algorithm 2; equations in kernels/ops.h).
#pragma once

#include <map>

#include "train/optim/optimizer.h"

namespace speedrun {

class Adamw final : public Optimizer {
  public:
    Adamw(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
          ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);
    void step(const Region& region, const StepContext& context) override;
    void reset(Stream& stream) override;

  private:
    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    Buffer moments_;
    std::map<int, int64_t> offset_;  // bytes, by region id: first moment, then second
};

}  // namespace speedrun
