#include "train/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/schedule.h"

namespace speedrun {

namespace {

int64_t lines_of(const Region& region) {  // second moments of each matrix
    return std::max(region.rows, region.cols);
}

}  // namespace

Muon::Muon(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
           ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : group_(group), parameters_(parameters), gradients_(gradients), runtime_(runtime) {
    int64_t bytes = 0, line_bytes = 0, largest = 0, workspace = 0;
    for (const Region* region : members) {
        const int64_t matrices = matrices_of(*region), count = matrices * region->rows * region->cols;
        offset_[region->id] = {bytes, line_bytes};
        bytes += count * size_of(DType::f32);
        line_bytes += matrices * lines_of(*region) * size_of(DType::f32);
        largest = std::max(largest, count);
        if (matrices > 0) {
            workspace =
                std::max(workspace, Ops::polar_express_workspace(matrices, region->rows, region->cols));
        }
    }
    momentum_ = Buffer(runtime.device(), "muon momentum", MemoryCategory::optimizer_state, bytes);
    if (group_.normuon) {
        second_moment_ =
            Buffer(runtime.device(), "normuon second moment", MemoryCategory::optimizer_state, line_bytes);
    }
    update_ =
        Buffer(runtime.device(), "muon update", MemoryCategory::workspace, largest * size_of(runtime.real()));
    workspace_ = Buffer(runtime.device(), "polar express", MemoryCategory::workspace,
                        workspace * size_of(runtime.real()));
}

Tensor Muon::momentum_of(const Region& region) const {
    return momentum_.tensor(DType::f32, {matrices_of(region) * region.rows * region.cols},
                            offset_.at(region.id).momentum);
}

Tensor Muon::second_moment_of(const Region& region) const {
    return second_moment_.tensor(DType::f32, {matrices_of(region), lines_of(region)},
                                 offset_.at(region.id).second_moment);
}

int64_t Muon::matrices_of(const Region& region) const {
    return parameters_.layout().valid(region) / (region.rows * region.cols);
}

void Muon::step(const Region& region, const StepContext& context) {
    const int64_t num_matrices = matrices_of(region), rows = region.rows, cols = region.cols;
    if (num_matrices == 0) return;  // other ranks own the matrices of this region
    Ops& ops = runtime_.ops();
    Stream& stream = *context.stream;
    const int64_t count = num_matrices * rows * cols;
    const Tensor update = update_.tensor(runtime_.real(), {count});
    const MuonMomentumOptions momentum{.momentum = static_cast<float>(muon_momentum_at(group_, context.step)),
                                       .nesterov = group_.nesterov};
    ops.muon_momentum(update, momentum_of(region), gradients_.part(region), context.grad_scale, momentum,
                      stream);
    const int64_t workspace = Ops::polar_express_workspace(num_matrices, rows, cols);
    const Tensor matrices = update_.tensor(runtime_.real(), {num_matrices, rows, cols});
    ops.polar_express(matrices, workspace_.tensor(runtime_.real(), {workspace}), stream);
    if (group_.normuon) {
        ops.normuon_scale(matrices, second_moment_of(region), context.grad_scale,
                          {.beta2 = static_cast<float>(group_.beta2)}, stream);
    }
    const double shape_scale =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
    const double lr = group_.lr * context.lr_factor;
    // Decay is lr·wd, without the shape's factor; muon_apply multiplies its decay by its learning rate.
    const MuonApplyOptions apply{.learning_rate = static_cast<float>(lr * shape_scale),
                                 .weight_decay = static_cast<float>(group_.weight_decay / shape_scale),
                                 .cautious = group_.cautious};
    ops.muon_apply(parameters_.compute_part(region), parameters_.master_part(region), update,
                   context.grad_scale, apply, stream);
}

std::vector<StateKind> Muon::state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols) {
    std::vector<StateKind> kinds = {{"muon_momentum"}};
    if (group.normuon) kinds.push_back({"normuon_v", rows * cols, std::max(rows, cols)});
    return kinds;
}

std::vector<StatePart> Muon::state(const Region& region) const {
    const std::vector<StateKind> kinds = state_kinds(group_, region.rows, region.cols);
    std::vector<StatePart> parts = {{kinds[0], momentum_of(region)}};
    if (group_.normuon) {
        const Tensor moment = second_moment_of(region);
        parts.push_back({kinds[1], moment.reshaped({moment.numel()})});
    }
    return parts;
}

void Muon::reset(Stream& stream) {
    for (const Buffer* state : {&momentum_, &second_moment_}) {
        const int64_t count = state->bytes() / size_of(DType::f32);
        if (count > 0) runtime_.ops().fill(state->tensor(DType::f32, {count}), 0.0f, stream);
    }
}

}  // namespace speedrun
