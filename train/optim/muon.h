// Muon: momentum, then the orthogonal polar factor of each matrix as the update (Jordan et al. 2024; polar
// factor by Polar Express, Amsel et al. 2025). Stacked parameters (q, k, v) are orthogonalised matrix by
// matrix. With `normuon` the lines of the factor are then scaled by their second moments (Li et al. 2025;
// equations in kernels/ops.h), which keeps its norm. The step is lr · √max(1, rows/cols), with decoupled
// weight decay.
#pragma once

#include <map>

#include "train/optim/optimizer.h"

namespace speedrun {

class Muon final : public Optimizer {
  public:
    Muon(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
         ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);
    void step(const Region& region, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StatePart> state(const Region& region) const override;
    static std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols);

  private:
    int64_t matrices_of(const Region& region) const;      // that this rank steps
    Tensor momentum_of(const Region& region) const;       // flat
    Tensor second_moment_of(const Region& region) const;  // (matrices, lines); with normuon only

    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    // Bytes into momentum_ and second_moment_.
    struct Offset {
        int64_t momentum, second_moment;
    };
    Buffer momentum_, second_moment_;  // the latter with normuon only
    Buffer update_, workspace_;        // serve one region at a time
    std::map<int, Offset> offset_;     // by region id
};

}  // namespace speedrun
