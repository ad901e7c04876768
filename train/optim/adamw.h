// AdamW: two f32 moments per element (Loshchilov & Hutter 2019, algorithm 2): kernels/ops/optimizer.h.
#pragma once

#include <map>

#include "train/sharding/optimizer.h"

namespace speedrun {

class Adamw final : public Optimizer {
  public:
    Adamw(const OptimizerGroupConfig& group, const std::vector<const Bucket*>& members,
          ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);
    bool at_once() const override { return true; }
    void begin(const Bucket& bucket, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StateShard> state(const Bucket& bucket) const override;
    static std::vector<StateKind> state_kinds() { return {{"adamw_m"}, {"adamw_v"}}; }

  private:
    Tensor moment(const Bucket& bucket, int which) const;  // 0: the first, 1: the second

    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    Buffer moments_;
    std::map<int, int64_t> offset_;  // bytes, by bucket id: first moment, then second
};

}  // namespace speedrun
