#include "train/engine/step_runner.h"

#include <algorithm>
#include <set>

#include "train/config/update_period.h"
#include "train/engine/zero_batches.h"
#include "train/model/build_model.h"
#include "train/optim/lr_schedule.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

// Among the ranks of an axis; null: there are none, or nobody runs.
std::unique_ptr<Communicator> connect_values(const Ranks& ranks, Axis axis) {
    if (ranks.size() == 1 || ranks.mesh().size(axis) == 1) return nullptr;
    return ranks.world()->connect(fmt::format("values over {}", name_of(axis)),
                                  ranks.mesh().group(ranks.rank(), {axis}));
}

BucketRules rules_of(const Config& config, const Ranks& ranks, DType real) {
    config.optimizers.check_precision(real);  // of precision auto, known only here
    return bucket_rules(ranks, parameters_of(config.model, config.longest_sequence(), ranks.tensor()),
                        config.optimizers, rank_tokens(config, ranks));
}

}  // namespace

StepRunner::StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks)
    : config_(config),
      runtime_(runtime),
      ranks_(ranks),
      period_(common_period(config.optimizers)),
      stages_(run_stages(config, ranks)),
      work_(stages_.stages.size()),
      models_(Transformer::make(stages_.shapes, runtime,
                                {.rules = rules_of(config, ranks, runtime.real()),
                                 .documents = config.data.document_mask,
                                 .memory = config.memory})),
      context_(connect_values(ranks, Axis::context)),
      tensor_(connect_values(ranks, Axis::tensor)),
      gradients_(model().table(), model().parameters().layout(), runtime,
                 gradient_memory(ranks, stages_.most_microbatches(), period_ == 1)),
      reducer_(ranks, model().parameters(), gradients_, runtime),
      capture_(runtime.device(), runtime.compute()),
      updates_(config.optimizers, {.table = model().table(),
                                   .ranks = ranks_,
                                   .stores = {model().parameters(), gradients_, reducer_, runtime},
                                   .capture = capture_}),
      stop_signal_(updates_.statistics(), runtime),
      clock_start_(runtime.device().create_event(EventKind::timed)),
      idle_until_(runtime.device().create_event(EventKind::timed)) {
    check_copies();
    for (Slot& slot : slots_) {
        slot.memory = HostBuffer(runtime.device(), updates_.statistics().host_bytes());
        for (auto* event : {&slot.begun, &slot.backward_done, &slot.step_done})
            *event = runtime.device().create_event(EventKind::timed);
        slot.reduce_done = runtime.device().create_event();
        for (auto* count : {&slot.counts.reduce, &slot.counts.gather, &slot.counts.exchange, &slot.values})
            count->done = runtime.device().create_event();
    }
    for (Communicator* values : {context_.get(), tensor_.get()})
        if (values) values->time_by(&reducer_.meter(), ExposureMeter::Kind::collective);
    for (Snapshot& snapshot : snapshots_) snapshot.copied = runtime.device().create_event(EventKind::timed);
    for (const auto& model : models_) {
        model->observe(&updates_);
        model->connect({.context = context_.get(), .tensor = tensor_.get(), .meter = &reducer_.meter()});
        model->scale_by(&updates_.scales());
    }
}

BusiestStep StepRunner::busiest_step() const {
    BusiestStep most;
    for (const auto& model : models_) {
        BusiestStep busiest = model->busiest_step();
        if (busiest.bytes > most.bytes) most = std::move(busiest);
    }
    return most;
}

void StepRunner::put_batch(const Batch& batch, Transformer& model, const StagePoint& point) {
    model.put_batch(batch, config_.model.loss().in_stage(point.stage).numbers_at(point));
    for (const RowIds& rows : model.row_ids()) reducer_.see_rows(table()[rows.table], rows.column.of(batch));
}

UpdatePipeline::Microbatch StepRunner::microbatch_of(const RunStage& stage, int64_t step) const {
    StagePoint point = config_.schedule.point_of(step);
    point.stage = stage.number;  // warm-up runs every stage at one step
    return {.step = step, .lr_factor = learning_rate_factor(config_.schedule, step), .point = point};
}

int64_t StepRunner::run_microbatches(const RunStage& stage, UpdatePipeline::Microbatch microbatch,
                                     BatchSource& source) {
    const int64_t step = microbatch.step, count = stage.microbatches;
    int64_t step_targets = 0, here = 0;
    for (int64_t m = 0; m < count; ++m) {
        const Batch& batch = source.next();
        if (m == 0) step_targets = batch.step_targets;
        here += batch.valid_targets;
        if (step_targets < 1) throw_data("step {}: none of its targets counts, so there is no loss", step);
        if (batch.step_targets != step_targets)
            throw_internal("step {}: {} targets count by microbatch {}, {} by the first", step,
                           batch.step_targets, m, step_targets);
        put_batch(batch, *models_[stage.model], microbatch.point);
        gradients_.rest(models_[stage.model]->resting());
        microbatch.first = m == 0;
        microbatch.last = m == count - 1;
        run_microbatch(stage.model, microbatch, step_targets);
    }
    if (here > step_targets || (ranks_.mesh().world_size() == 1 && here < step_targets))
        throw_internal("step {}: {} targets count on this rank, in all {} are announced", step, here,
                       step_targets);
    return step_targets;
}

// Microbatches with the same key enqueue the same work: of which shape, which gradients begin anew, which are final,
// and what their losses are divided by.
StepRunner::GraphKey StepRunner::key_of(size_t model, const UpdatePipeline::Microbatch& microbatch,
                                        int64_t step_targets) const {
    return {model,           microbatch.first,
            microbatch.last, microbatch.step % period_,
            step_targets,    updates_.scales().num_exact()};
}

void StepRunner::run_microbatch(size_t model, const UpdatePipeline::Microbatch& microbatch,
                                int64_t step_targets) {
    const auto graph = use_graphs_ ? graphs_.find(key_of(model, microbatch, step_targets)) : graphs_.end();
    if (graph == graphs_.end()) return enqueue_model(model, microbatch, step_targets);
    updates_.begin_microbatch(microbatch);
    if (microbatch.first) updates_.await_unit(0);  // waits within a graph are not timed
    graph->second->launch(runtime_.compute());
    gradients_.contributed();
}

void StepRunner::enqueue_model(size_t model, const UpdatePipeline::Microbatch& microbatch,
                               int64_t step_targets) {
    const float gradient_scale = config_.model.loss().gradient_scale(step_targets);
    updates_.begin_microbatch(microbatch);
    mark(Phase::forward);
    models_[model]->forward(true);
    mark(Phase::backward);
    models_[model]->loss_and_backward(updates_.statistics().loss_sum(), !microbatch.first, gradient_scale,
                                      gradients_);
    gradients_.expect_all_ready();
    updates_.end_microbatch();
}

// After a step has run call by call: every shape has been met, every event recorded once, and the gradients
// have begun, which is what a microbatch that is not the first finds. Every target counts in a captured step,
// as in all that the loader hands out; a step that masks some finds no graph and runs call by call.
void StepRunner::capture_graphs(const RunStage& stage) {
    const int64_t count = stage.microbatches, all_targets = stage.tokens_per_step;
    for (int64_t step = 0; step < period_; ++step) {
        for (int64_t m = 0; m < count; ++m) {
            const UpdatePipeline::Microbatch microbatch{
                .step = step, .lr_factor = 1, .first = m == 0, .last = m == count - 1};
            const GraphKey key = key_of(stage.model, microbatch, all_targets);
            if (graphs_.count(key)) continue;
            gradients_.rest(models_[stage.model]->resting());
            auto captured = capture_.capture([&] { enqueue_model(stage.model, microbatch, all_targets); });
            if (captured) graphs_[key] = std::move(captured);
        }
    }
}

void StepRunner::enqueue_optimizer(Slot& slot, bool stop) {
    stop_signal_.send(stop);
    updates_.step(*slot.backward_done, *slot.reduce_done);
    updates_.read_statistics(slot.memory.as<float>(), *slot.reduce_done, *slot.step_done);
    reducer_.count(slot.counts, runtime_);
    if (!exchanges_values()) return;
    Communicator::count_at(slot.values.counts, value_communicators(), runtime_.compute());
    runtime_.compute().record(*slot.values.done);
}

void StepRunner::enqueue(int64_t step, BatchSource& source, bool stop) {
    if (uncollected() >= static_cast<int64_t>(slots_.size()))
        throw_internal("step {}: two steps are uncollected", step);
    Slot& slot = slots_[enqueued_ % slots_.size()];
    slot.step = step;
    if (timeline_) timeline_->begin_step(step);
    if (ranks_.size() > 1) runtime_.compute().record(*slot.begun);
    reducer_.meter().turn(ranks_.size() > 1);  // one rank has no communication to expose
    wake_copies(step);
    updates_.scales().begin_step(step);
    const UpdatePipeline::Microbatch microbatch = microbatch_of(stage_of(step), step);
    slot.lr_factor = microbatch.lr_factor;
    slot.targets = run_microbatches(stage_of(step), microbatch, source);
    enqueue_optimizer(slot, stop);
    reducer_.meter().turn(false);
    ++enqueued_;
    steps_ = step + 1;
}

void StepRunner::warm_up() {
    // Other ranks have connections to set up, whose collectives want to run.
    const bool rehearsal = ranks_.size() == 1;
    if (rehearsal) runtime_.device().rehearse(true);
    const std::vector<int64_t> turns = updates_.scales().turns();
    for (int64_t stage = 0; stage < config_.schedule.num_stages(); ++stage) {
        // What runs between the first turn and the last has been met in either.
        for (const int64_t turn : std::set{turns.front(), turns.back()}) {
            updates_.scales().begin_step(turn);
            warm_up_stage(stage);
        }
    }
    warm_up_validation();
    runtime_.synchronize();
    if (rehearsal) runtime_.device().rehearse(false);
    if (!config_.cuda.graph || exchanges_values()) return;  // MPI does not talk in a graph
    for (const int64_t turn : turns) {
        updates_.scales().set_step(turn);
        for (const RunStage& stage : stages_.stages) capture_graphs(stage);
    }
}

void StepRunner::warm_up_stage(int64_t stage) {
    const RunStage& s = stages_.stages[static_cast<size_t>(stage)];
    StepWork& work = work_[static_cast<size_t>(stage)];
    const Transformer& model = *models_[s.model];
    ZeroBatches source(model, s.tokens_per_step);
    const int64_t before = runtime_.ops().flops(), recomputed_before = model.recomputed_flops();
    run_microbatches(s, microbatch_of(s, period_ - 1), source);  // every group updates at this step
    work.recomputed_flops = model.recomputed_flops() - recomputed_before;
    work.flops = runtime_.ops().flops() - before - work.recomputed_flops;
    enqueue_optimizer(slots_[0], false);
}

// Nothing that a stage has not run, unless its rows or windows are its own, or its products are (fp8).
void StepRunner::warm_up_validation() {
    const bool trains_alike = !config_.model.spelled_out().uses_fp8();
    for (const RunStage& stage : stages_.stages)
        if (trains_alike && stage.model == stages_.validation.model) return;
    ZeroBatches source(validation_model(), stages_.validation.tokens_per_step);
    validation_model().put_batch(source.next());
    validation_model().forward(false);
    validation_model().loss(updates_.statistics().loss_sum(), false);
}

void StepRunner::initialize(uint64_t seed) {
    model().parameters().initialize(seed);
    updates_.reset();
    updates_.gather_all();
    steps_ = 0;
    refresh_copies();
}

void StepRunner::trace(Timeline* timeline) {
    timeline_ = timeline;
    updates_.trace(timeline);
}

void StepRunner::assign(const std::vector<std::vector<float>>& values) {
    model().parameters().assign(values);
    updates_.gather_all();
}

std::vector<const Communicator*> StepRunner::value_communicators() const {
    std::vector<const Communicator*> all;
    for (const Communicator* values : {context_.get(), tensor_.get()})
        if (values) all.push_back(values);
    return all;
}

void StepRunner::start_clock() {
    runtime_.synchronize();
    runtime_.compute().record(*clock_start_);
    last_clock_ms_ = 0;
    reducer_.meter().clear();
    last_counts_ = reducer_.counts();
    for (const Communicator* values : value_communicators()) last_counts_ = last_counts_ + values->counts();
}

void StepRunner::mark(Phase phase) {
    if (timeline_) timeline_->mark(runtime_.compute(), phase);
    if (timeline_ && exchanges_values()) timeline_->mark(runtime_.exchange(), phase);
}

int64_t StepRunner::bytes_sent() const {
    int64_t bytes = reducer_.bytes_sent();
    for (const Communicator* values : value_communicators())
        for (const CollectiveCount& count : values->counts()) bytes += count.bytes_sent;
    return bytes;
}

}  // namespace speedrun
