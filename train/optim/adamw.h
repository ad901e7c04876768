// AdamW: two moments per element, f32 or bf16 (Loshchilov & Hutter 2019, algorithm 2; equations in
// kernels/ops/optimizer.h).
#pragma once

#include "train/optim/optimizer.h"

namespace speedrun {

struct AdamwConfig {
    double beta1 = 0.9, beta2 = 0.95;
    double epsilon = 1e-8;
    DType moments_dtype = DType::f32;
    DType weights_dtype = DType::f32;
    bool cautious = false;
    bool decays_unmoved = true;
    void fields(FieldVisitor& v);
    void check(const CheckedGroup& group) const;  // throws a usage error
};

class Adamw final : public ElementwiseOptimizer {
  public:
    using Config = AdamwConfig;
    Adamw(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds() const override;
    void step(const OptimizerShard& shard, const StepContext& context) const override;

  private:
    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
