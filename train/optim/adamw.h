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
    std::vector<StatePart> state(const Region& region) const override;
    static std::vector<StateKind> state_kinds() { return {{"adamw_m"}, {"adamw_v"}}; }

  private:
    Tensor moment(const Region& region, int which) const;  // 0: the first, 1: the second

    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    Buffer moments_;
    std::map<int, int64_t> offset_;  // bytes, by region id: first moment, then second
};

}  // namespace speedrun
