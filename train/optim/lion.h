// Lion: the sign of an average of the gradient, with one momentum per element (Chen et al. 2023, algorithm 2;
// equations in kernels/ops/optimizer.h).
#pragma once

#include "train/optim/optimizer.h"

namespace speedrun {

struct LionConfig {
    double beta1 = 0.9, beta2 = 0.95;
    void fields(FieldVisitor& v);
    void check(const CheckedGroup&) const {}
};

class Lion final : public ElementwiseOptimizer {
  public:
    using Config = LionConfig;
    Lion(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds() const override { return {{"lion_momentum"}}; }
    void step(const OptimizerShard& shard, const StepContext& context) const override;

  private:
    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
