// AdamW: two moments per element, f32 or bf16 (Loshchilov & Hutter 2019, algorithm 2; equations in kernels/ops).
#pragma once

#include "train/config/config.h"
#include "train/optim/optimizer.h"

namespace speedrun {

class Adamw final : public ElementwiseOptimizer {
  public:
    explicit Adamw(const OptimizerGroupConfig& group) : group_(group) {}
    std::vector<StateKind> state_kinds() const override {
        return {{.name = "adamw_m", .dtype = group_.moments_dtype},
                {.name = "adamw_v", .dtype = group_.moments_dtype}};
    }
    void step(const OptimizerShard& shard, const StepContext& context) const override;

  private:
    const OptimizerGroupConfig group_;
};

}  // namespace speedrun
