#include "train/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/schedule.h"

namespace speedrun {

namespace {

int64_t lines_of(const Parameter& p) {  // second moments of each matrix
    return std::max(p.shape[0] / p.matrices, p.shape[1]);
}

}  // namespace

Muon::Muon(const OptimizerGroupConfig& group, const std::vector<const Parameter*>& members,
           ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : group_(group), parameters_(parameters), gradients_(gradients), runtime_(runtime) {
    int64_t bytes = 0, line_bytes = 0, largest = 0, workspace = 0;
    for (const Parameter* p : members) {
        offset_[p->id] = {bytes, line_bytes};
        bytes += p->numel() * size_of(DType::f32);
        line_bytes += p->matrices * lines_of(*p) * size_of(DType::f32);
        largest = std::max(largest, p->numel());
        workspace = std::max(
            workspace, Ops::polar_express_workspace(p->matrices, p->shape[0] / p->matrices, p->shape[1]));
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

void Muon::step(const Parameter& p, const StepContext& context) {
    Ops& ops = runtime_.ops();
    Stream& stream = *context.stream;
    const Offset& offset = offset_.at(p.id);
    const int64_t count = p.numel(), rows = p.shape[0] / p.matrices, cols = p.shape[1];
    const Tensor update = update_.tensor(runtime_.real(), {count});
    const MuonMomentumOptions momentum{.momentum = static_cast<float>(muon_momentum_at(group_, context.step)),
                                       .nesterov = group_.nesterov};
    ops.muon_momentum(update, momentum_.tensor(DType::f32, {count}, offset.momentum), gradients_.flat(p),
                      context.grad_scale, momentum, stream);
    const int64_t workspace = Ops::polar_express_workspace(p.matrices, rows, cols);
    const Tensor matrices = update_.tensor(runtime_.real(), {p.matrices, rows, cols});
    ops.polar_express(matrices, workspace_.tensor(runtime_.real(), {workspace}), stream);
    if (group_.normuon) {
        ops.normuon_scale(matrices,
                          second_moment_.tensor(DType::f32, {p.matrices, lines_of(p)}, offset.second_moment),
                          context.grad_scale, {.beta2 = static_cast<float>(group_.beta2)}, stream);
    }
    const double shape_scale =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
    const double lr = group_.lr * context.lr_factor;
    // Decay is lr·wd, without the shape's factor; muon_apply multiplies its decay by its learning rate.
    const MuonApplyOptions apply{.learning_rate = static_cast<float>(lr * shape_scale),
                                 .weight_decay = static_cast<float>(group_.weight_decay / shape_scale),
                                 .cautious = group_.cautious};
    ops.muon_apply(parameters_.compute_flat(p), parameters_.master(p), update, context.grad_scale, apply,
                   stream);
}

void Muon::reset(Stream& stream) {
    for (const Buffer* state : {&momentum_, &second_moment_}) {
        const int64_t count = state->bytes() / size_of(DType::f32);
        if (count > 0) runtime_.ops().fill(state->tensor(DType::f32, {count}), 0.0f, stream);
    }
}

}  // namespace speedrun
