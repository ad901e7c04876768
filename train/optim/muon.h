// Muon: momentum, then the orthogonal polar factor of each matrix as the update (Jordan et al. 2024; polar
// factor by Polar Express, Amsel et al. 2025). Stacked parameters (q, k, v) are orthogonalised matrix by
// matrix. With `normuon` the lines of the factor (normuon_lines) are then scaled by their second moments (Li et al.
// 2025; equations in kernels/ops), which keeps its norm. The step is lr · √max(1, rows/cols), and
// weights decay by lr · wd, or by lr · lr · √max(1, rows/cols) · wd (weight_decay_by).
#pragma once

#include "train/config/config.h"
#include "train/optim/optimizer.h"

namespace speedrun {

class Muon final : public MatrixOptimizer {
  public:
    explicit Muon(const OptimizerGroupConfig& group) : group_(group) {}
    std::vector<StateKind> state_kinds(int64_t rows, int64_t cols) const override;
    void propose(const Tensor& update, const OptimizerShard& shard,
                 const StepContext& context) const override;
    void transform(const MatrixBatch& batch, const StepContext& context) const override;
    int64_t workspace(int64_t count, int64_t rows, int64_t cols) const override {
        return op::PolarExpress::workspace_size(count, rows, cols);
    }
    void apply(const OptimizerShard& shard, const Tensor& update, const Shape& matrix,
               const StepContext& context) const override;

  private:
    const OptimizerGroupConfig group_;
};

}  // namespace speedrun
