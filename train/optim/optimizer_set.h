// All optimizers of a run: which group takes which parameter, the global gradient norm and clipping, and the
// step in reverse order on the optimizer stream, ordered with compute by events alone.
#pragma once

#include <memory>
#include <vector>

#include "train/optim/optimizer.h"

namespace speedrun {

// The group index of each parameter: the first group with a pattern (shell wildcards) that matches its name.
// Throws a usage error naming every parameter that no group takes, a group that takes none, and a vector
// given to muon.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

class OptimizerSet {
  public:
    // Statistics of a step on the device, f32: [loss sum, gradient norm, clip coefficient, ‖g‖² of each
    // parameter].
    static constexpr int64_t kLossSum = 0, kGradNorm = 1, kCoefficient = 2, kSquares = 3;

    OptimizerSet(const OptimizersConfig& config, const ParameterTable& table, ParameterStore& parameters,
                 GradientStore& gradients, Runtime& runtime);

    // The gradient of p is complete on the compute stream.
    void gradient_ready(const Parameter& p);
    // Enqueues its norm on the optimizer stream, where it is taken while backward goes on. After
    // gradient_ready.
    void take_norm(const Parameter& p);
    // Enqueues the step of every parameter, in reverse order of declaration, after all norms.
    void step(int64_t step, double lr_factor);
    // Makes the compute stream wait until this unit's parameters have been stepped.
    void await_unit(int unit);
    // Enqueues the state of step 0 on the compute stream.
    void reset();

    Tensor statistics() const { return statistics_.tensor(DType::f32, {num_statistics_}); }
    Tensor statistic(int64_t index) const {
        return statistics_.tensor(DType::f32, {1}, index * size_of(DType::f32));
    }

  private:
    const OptimizersConfig config_;
    const ParameterTable& table_;
    GradientStore& gradients_;
    Runtime& runtime_;
    std::vector<std::unique_ptr<Optimizer>> optimizers_;
    std::vector<int> group_of_;  // by parameter id
    Buffer statistics_;
    int64_t num_statistics_ = 0;
    std::vector<std::unique_ptr<Event>> raw_;      // by parameter id: gradient complete
    std::vector<std::unique_ptr<Event>> stepped_;  // by unit
};

}  // namespace speedrun
