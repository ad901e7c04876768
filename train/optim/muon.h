// Muon: momentum, then the orthogonal polar factor of each matrix as the update (Jordan et al. 2024; polar factor by Polar
// Express, Amsel et al. 2025). The matrices of a stacked parameter (q, k, v) are orthogonalised one by one. With `normuon`
// the lines of the factor are then scaled by their second moments (Li et al. 2025; equations in kernels/ops/optimizer.h),
// and the factor keeps its norm. The step is lr · √max(1, rows/cols). Weights decay by lr · wd, or by
// lr · lr · √max(1, rows/cols) · wd (weight_decay_by).
#pragma once

#include "train/optim/optimizer.h"

namespace speedrun {

template <>
inline constexpr Word<NormuonLines> kWords<NormuonLines>[] = {
    {"auto", NormuonLines::more}, {"rows", NormuonLines::rows}, {"columns", NormuonLines::columns}};

struct MuonConfig {
    Scheduled<double> momentum = 0.95;
    double momentum_start = 0.85;
    int64_t momentum_warmup_steps = 300;
    int64_t momentum_cooldown_steps = 0;
    DType weights_dtype = DType::f32;
    bool nesterov = true;
    bool cautious = false;
    double polar_epsilon = 1e-6;
    bool normuon = false;
    NormuonLines normuon_lines = NormuonLines::more;
    double beta2 = 0.95;    // normuon
    double epsilon = 1e-8;  // normuon
    int64_t heads_per_matrix = 0;
    void fields(FieldVisitor& v);
    void check(const CheckedGroup& group) const;  // throws a usage error
};

// Momentum of a step: linear from momentum_start to momentum over the first momentum_warmup_steps, then momentum, which
// may differ by stage, then linear towards momentum_start over the last momentum_cooldown_steps. The first step of the
// cooldown has momentum, and a step after the last would have momentum_start. Where warm-up and cooldown overlap, the
// smaller share applies. `step` and both lengths count steps of the group; `point` is a step of the run.
double muon_momentum_at(const StepSettings& group, const MuonConfig& muon, int64_t step,
                        const StagePoint& point = {});

class Muon final : public MatrixOptimizer {
  public:
    using Config = MuonConfig;
    Muon(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds(int64_t rows, int64_t cols) const override;
    int64_t heads_per_matrix() const override { return config_.heads_per_matrix; }
    void propose(const Tensor& update, const OptimizerShard& shard,
                 const StepContext& context) const override;
    void transform(const MatrixBatch& batch, const StepContext& context) const override;
    int64_t workspace(int64_t count, int64_t rows, int64_t cols) const override {
        return op::PolarExpress::workspace_size(count, rows, cols);
    }
    void apply(const OptimizerShard& shard, const Tensor& update, const Shape& matrix,
               const StepContext& context) const override;

  private:
    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
