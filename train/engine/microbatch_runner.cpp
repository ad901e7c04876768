#include "train/engine/microbatch_runner.h"

#include "train/config/lr_schedule.h"

namespace speedrun {

void MicrobatchRunner::upload(const Batch& batch, Transformer& model, const StagePoint& point) {
    model.put_batch(batch, state_.config.model.parts.loss.in_stage(point.stage).numbers_at(point));
    for (const RowIds& rows : model.description().row_ids)
        state_.reducer.mark_rows(state_.table()[rows.table], rows.column.of(batch));
}

Microbatch MicrobatchRunner::first_of(const RunStage& stage, int64_t step) const {
    const ScheduleConfig& schedule = state_.config.schedule;
    StagePoint point = schedule.point_of(step);
    point.stage = stage.number;  // warm-up runs every stage at one step
    return {.step = step,
            .lr_factor = learning_rate_factor(schedule, step),
            .point = point,
            .unused = state_.models[stage.model]->description().inactive,
            .first = true,
            .last = stage.microbatches == 1};
}

int64_t MicrobatchRunner::run_step(const RunStage& stage, const Microbatch& first, BatchSource& source) {
    const int64_t step = first.step, count = stage.microbatches;
    int64_t step_targets = 0, here = 0;
    Microbatch microbatch = first;
    for (int64_t m = 0; m < count; ++m) {
        const Batch& batch = source.next();
        if (m == 0) step_targets = batch.step_targets;
        here += batch.valid_targets;
        if (step_targets < 1) throw_data("step {}: none of its targets is valid, so there is no loss", step);
        if (batch.step_targets != step_targets)
            throw_internal("step {}: {} targets count by microbatch {}, {} by the first", step,
                           batch.step_targets, m, step_targets);
        upload(batch, *state_.models[stage.model], microbatch.point);
        microbatch.first = m == 0;
        microbatch.last = m == count - 1;
        run(stage.model, microbatch, step_targets);
    }
    if (here > step_targets || (state_.ranks.mesh().world_size() == 1 && here < step_targets))
        throw_internal("step {}: {} targets count on this rank, in all {} are announced", step, here,
                       step_targets);
    return step_targets;
}

MicrobatchRunner::GraphKey MicrobatchRunner::key_of(size_t model, const Microbatch& microbatch,
                                                    int64_t step_targets) const {
    return {model,           microbatch.first,
            microbatch.last, microbatch.step % state_.period,
            step_targets,    state_.schedule.state().scales().num_current_scaling()};
}

void MicrobatchRunner::run(size_t model, const Microbatch& microbatch, int64_t step_targets) {
    const auto graph = use_graphs_ ? graphs_.find(key_of(model, microbatch, step_targets)) : graphs_.end();
    if (graph == graphs_.end()) {
        if (has_graphs() && use_graphs_ && last_ungraphed_ != microbatch.step) {
            last_ungraphed_ = microbatch.step;
            ++ungraphed_steps_;
        }
        return enqueue(model, microbatch, step_targets);
    }
    state_.schedule.begin_microbatch(microbatch);
    state_.schedule.launch(*graph->second);
}

void MicrobatchRunner::enqueue(size_t model, const Microbatch& microbatch, int64_t step_targets) {
    const float gradient_scale = state_.config.model.parts.loss.gradient_scale(step_targets);
    state_.schedule.begin_microbatch(microbatch);
    mark(Phase::forward);
    state_.models[model]->forward(true);
    mark(Phase::backward);
    state_.models[model]->loss_and_backward(state_.schedule.statistics().loss_sum(), !microbatch.first,
                                            gradient_scale);
    state_.schedule.end_microbatch();
}

// Requires a step that ran call by call: all shapes have run, all events are recorded, and all gradients have
// contributions, as before any microbatch but the first.
void MicrobatchRunner::capture(const RunStage& stage) {
    const int64_t count = stage.microbatches, all_targets = stage.tokens_per_step;
    for (int64_t step = 0; step < state_.period; ++step) {
        Microbatch microbatch = first_of(stage, step);
        for (int64_t m = 0; m < count; ++m) {
            microbatch.first = m == 0;
            microbatch.last = m == count - 1;
            const GraphKey key = key_of(stage.model, microbatch, all_targets);
            if (graphs_.count(key)) continue;
            auto captured = state_.schedule.capture([&] { enqueue(stage.model, microbatch, all_targets); });
            if (captured) graphs_[key] = std::move(captured);
        }
        state_.schedule.capture_step(microbatch);
    }
}

void MicrobatchRunner::mark(Phase phase) {
    if (!timeline_) return;
    timeline_->mark(state_.runtime.compute(), phase);
    if (state_.exchanges_values()) timeline_->mark(state_.runtime.exchange(), phase);
}

}  // namespace speedrun
