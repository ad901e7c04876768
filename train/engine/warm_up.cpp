#include "train/engine/warm_up.h"

#include <set>

#include "train/engine/zero_batches.h"

namespace speedrun {

std::vector<StepWork> WarmUp::run() {
    // Several ranks run real collectives, which set up connections.
    const bool dry_run = state_.ranks.size() == 1;
    if (dry_run) state_.runtime.device().set_dry_run(true);
    ScaleStore& scales = state_.schedule.state().scales();
    const std::vector<int64_t> switch_steps = scales.switch_steps();
    std::vector<StepWork> work;
    for (const RunStage& stage : state_.stages.stages) {
        work.emplace_back();
        // Steps between the first and the last switch have no other shapes.
        for (const int64_t switch_step : std::set{switch_steps.front(), switch_steps.back()}) {
            scales.begin_step(switch_step);
            work.back() = run_step(stage);
        }
    }
    run_validation();
    state_.runtime.synchronize();
    if (dry_run) state_.runtime.device().set_dry_run(false);
    if (!state_.config.cuda.graph || state_.exchanges_values()) return work;  // MPI cannot run in a graph
    for (const int64_t switch_step : switch_steps) {
        scales.set_step(switch_step);
        for (const RunStage& stage : state_.stages.stages) microbatches_.capture(stage);
    }
    return work;
}

StepWork WarmUp::run_step(const RunStage& stage) {
    const Transformer& model = *state_.models[stage.model];
    ZeroBatches source(model, stage.tokens_per_step);
    const int64_t before = state_.runtime.ops().flops(), recomputed_before = model.recomputed_flops();
    // Every group updates its parameters at the last step of a period.
    microbatches_.run_step(stage, microbatches_.first_of(stage, state_.period - 1), source);
    StepWork work;
    work.recomputed_flops = model.recomputed_flops() - recomputed_before;
    work.flops = state_.runtime.ops().flops() - before - work.recomputed_flops;
    slot_.enqueue_update(state_, false);
    return work;
}

// Needed only if no stage has run these shapes: rows or windows differ, or training uses FP8 matmuls and validation
// does not.
void WarmUp::run_validation() {
    const bool same_forward = !state_.config.model.parts.uses_fp8();
    for (const RunStage& stage : state_.stages.stages)
        if (same_forward && stage.model == state_.stages.validation.model) return;
    ZeroBatches source(state_.validation_model(), state_.stages.validation.tokens_per_step);
    state_.validation_model().put_batch(source.next());
    state_.validation_model().forward(false);
    state_.validation_model().loss(state_.schedule.statistics().loss_sum(), false);
}

}  // namespace speedrun
