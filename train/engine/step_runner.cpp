#include "train/engine/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "train/model/build_model.h"
#include "train/optim/lr_schedule.h"

namespace speedrun {

namespace {

// Endless zeros: every token is 0 and counts.
class DummySource final : public BatchSource {
  public:
    explicit DummySource(const Config& config) {
        const int64_t tokens = config.batch.microbatch_tokens, sequence_length = config.batch.sequence_length;
        batch_.tokens.assign(tokens, 0);
        batch_.targets.assign(tokens, 0);
        for (int64_t t = 0; t < tokens; ++t) {
            batch_.positions.push_back(static_cast<int32_t>(t % sequence_length));
            batch_.first_key.push_back(static_cast<int32_t>(t / sequence_length * sequence_length));
        }
        batch_.valid_targets = tokens;
        batch_.step_targets = config.batch.tokens_per_step;
        hash_ngrams(batch_, config.model.ngram_table());
    }
    const Batch& next() override { return batch_; }

  private:
    Batch batch_;
};

bool steps_every_step(const OptimizersConfig& config) {
    for (const OptimizerGroupConfig& group : config.groups)
        if (group.every > 1) return false;
    return true;
}

// Steps after which all groups are where they were: the least common multiple of their `every`.
int64_t period_of(const OptimizersConfig& config) {
    int64_t period = 1;
    for (const OptimizerGroupConfig& group : config.groups) period = std::lcm(period, group.every);
    return period;
}

}  // namespace

StepRunner::StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks)
    : config_(config),
      runtime_(runtime),
      ranks_(ranks),
      period_(period_of(config.optimizers)),
      microbatches_(config.batch.tokens_per_step / (config.batch.microbatch_tokens * ranks.num_data_ranks())),
      model_(
          config.model,
          {.tokens = config.batch.microbatch_tokens, .sequence_length = config.batch.sequence_length},
          runtime,
          bucket_rules(ranks, parameters_of(config.model, config.batch.sequence_length), config.optimizers),
          config.data.document_mask, config.memory),
      gradients_(model_.table(), model_.parameters().layout(), runtime,
                 gradient_memory(ranks, microbatches_, steps_every_step(config.optimizers))),
      reducer_(ranks, model_.parameters(), gradients_, runtime),
      capture_(runtime.device(), runtime.compute()),
      updates_(config.optimizers, {.table = model_.table(),
                                   .ranks = ranks_,
                                   .stores = {model_.parameters(), gradients_, reducer_, runtime},
                                   .capture = capture_}),
      stop_signal_(updates_.statistics(), runtime),
      uploaded_(runtime.device().create_event()),
      clock_start_(runtime.device().create_event(EventKind::timed)),
      copied_(runtime.device().create_event(EventKind::timed)),
      idle_until_(runtime.device().create_event(EventKind::timed)),
      staging_(runtime.device(), (4 + config.model.ngram_table().num_sizes()) *
                                     config.batch.microbatch_tokens * size_of(DType::i32)) {
    for (Slot& slot : slots_) {
        slot.memory = HostBuffer(runtime.device(), updates_.statistics().host_bytes());
        slot.backward_done = runtime.device().create_event(EventKind::timed);
        slot.reduce_done =
            runtime.device().create_event(ranks.size() > 1 ? EventKind::timed : EventKind::order);
        slot.step_done = runtime.device().create_event(EventKind::timed);
        for (auto* count : {&slot.counts.reduce, &slot.counts.gather, &slot.counts.exchange})
            count->done = runtime.device().create_event();
    }
    model_.observe(&updates_);
}

void StepRunner::upload(const Batch& batch) {
    uploaded_->synchronize();  // the staging memory is free again
    auto* staged = staging_.as<int32_t>();
    model_.put_batch(batch, [&](const Tensor& to, std::span<const int32_t> values) {
        std::copy(values.begin(), values.end(), staged);
        runtime_.device().copy(to.data, staged, to.bytes(), runtime_.compute());
        staged += to.numel();
    });
    runtime_.compute().record(*uploaded_);
}

int64_t StepRunner::run_microbatches(int64_t step, BatchSource& source) {
    const int64_t count = microbatches_;
    int64_t step_targets = 0, here = 0;
    for (int64_t m = 0; m < count; ++m) {
        const Batch& batch = source.next();
        if (m == 0) step_targets = batch.step_targets;
        here += batch.valid_targets;
        if (step_targets < 1) throw_data("step {}: none of its targets counts, so there is no loss", step);
        if (batch.step_targets != step_targets)
            throw_internal("step {}: {} targets count by microbatch {}, {} by the first", step,
                           batch.step_targets, m, step_targets);
        upload(batch);
        run_microbatch({.step = step,
                        .lr_factor = learning_rate_factor(config_.schedule, step),
                        .first = m == 0,
                        .last = m == count - 1},
                       step_targets);
    }
    if (here > step_targets || (ranks_.num_data_ranks() == 1 && here < step_targets))
        throw_internal("step {}: {} targets count on this rank, in all {} are announced", step, here,
                       step_targets);
    return step_targets;
}

// Microbatches with the same key enqueue the same work: which gradients begin anew, which are final, and what
// their losses are divided by.
StepRunner::GraphKey StepRunner::key_of(const UpdatePipeline::Microbatch& microbatch,
                                        int64_t step_targets) const {
    return {microbatch.first, microbatch.last, microbatch.step % period_, step_targets};
}

void StepRunner::run_microbatch(const UpdatePipeline::Microbatch& microbatch, int64_t step_targets) {
    const auto graph = use_graphs_ ? graphs_.find(key_of(microbatch, step_targets)) : graphs_.end();
    if (graph == graphs_.end()) return enqueue_model(microbatch, step_targets);
    updates_.begin_microbatch(microbatch);
    graph->second->launch(runtime_.compute());
    gradients_.contributed();
}

void StepRunner::enqueue_model(const UpdatePipeline::Microbatch& microbatch, int64_t step_targets) {
    const auto gradient_scale = static_cast<float>(1.0 / static_cast<double>(step_targets));
    updates_.begin_microbatch(microbatch);
    if (timeline_) timeline_->mark(runtime_.compute(), Phase::forward);
    model_.forward();
    if (timeline_) timeline_->mark(runtime_.compute(), Phase::backward);
    model_.loss_and_backward(updates_.statistics().loss_sum(), !microbatch.first, gradient_scale, gradients_);
    gradients_.expect_all_ready();
    updates_.end_microbatch();
}

// After a step has run call by call: every shape has been met, every event recorded once, and the gradients
// have begun, which is what a microbatch that is not the first finds. Every target counts in a captured step,
// as in all that the loader hands out; a step that masks some finds no graph and runs call by call.
void StepRunner::capture_graphs() {
    const int64_t count = microbatches_, all_targets = config_.batch.tokens_per_step;
    for (int64_t step = 0; step < period_; ++step) {
        for (int64_t m = 0; m < count; ++m) {
            const UpdatePipeline::Microbatch microbatch{
                .step = step, .lr_factor = 1, .first = m == 0, .last = m == count - 1};
            const GraphKey key = key_of(microbatch, all_targets);
            if (graphs_.count(key)) continue;
            auto captured = capture_.capture([&] { enqueue_model(microbatch, all_targets); });
            if (captured) graphs_[key] = std::move(captured);
        }
    }
}

void StepRunner::enqueue_optimizer(Slot& slot, bool stop) {
    stop_signal_.send(stop);
    updates_.step(*slot.backward_done, *slot.reduce_done);
    updates_.read_statistics(slot.memory.as<float>(), *slot.reduce_done, *slot.step_done);
    reducer_.count(slot.counts, runtime_);
}

void StepRunner::enqueue(int64_t step, BatchSource& source, bool stop) {
    if (uncollected() >= static_cast<int64_t>(slots_.size()))
        throw_internal("step {}: two steps are uncollected", step);
    Slot& slot = slots_[enqueued_ % slots_.size()];
    slot.step = step;
    slot.lr_factor = learning_rate_factor(config_.schedule, step);
    if (timeline_) timeline_->begin_step(step);
    slot.targets = run_microbatches(step, source);
    enqueue_optimizer(slot, stop);
    ++enqueued_;
}

StepResult StepRunner::collect() {
    if (uncollected() == 0) throw_internal("there is no step to collect");
    Slot& slot = slots_[collected_ % slots_.size()];
    slot.step_done->synchronize();
    CollectiveCounts counts{};
    for (const Reducer::Count* count : {&slot.counts.reduce, &slot.counts.gather, &slot.counts.exchange}) {
        count->done->synchronize();
        counts = counts + count->counts;
    }
    if (uncollected() == 1)
        runtime_.synchronize();  // nothing else in flight: also surfaces errors of the streams
    ++collected_;

    StepResult result;
    result.step = slot.step;
    result.lr_factor = slot.lr_factor;
    result.loss = slot.loss();
    result.grad_norm = slot.numbers().grad_norm();
    result.stop = StopSignal::received(slot.numbers());
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) report_divergence(slot);
    result.clock_ms = slot.step_done->elapsed_ms_since(*clock_start_);
    result.step_ms = result.clock_ms - last_clock_ms_;
    result.optimizer_ms = slot.step_done->elapsed_ms_since(*slot.backward_done);
    if (ranks_.size() > 1) result.comm_exposed_ms = slot.reduce_done->elapsed_ms_since(*slot.backward_done);
    if (collected_ == snapshot_at_ + 1)
        result.copy_stall_ms = std::max(0.0, copied_->elapsed_ms_since(*slot.backward_done));
    last_clock_ms_ = result.clock_ms;
    result.communication = counts - last_counts_;
    last_counts_ = counts;
    return result;
}

// Backward runs from the last parameter to the first, so the last one in the table whose gradient is bad was
// the first to be so. A parameter that is itself not finite is the cause rather than a symptom and goes
// before.
void StepRunner::report_divergence(const Slot& slot) {
    runtime_.synchronize();
    std::string culprit = "every gradient's norm is finite, but not that of all";
    const BucketLayout& layout = updates_.layout();
    for (const int id : layout.backward_order()) {
        if (std::isfinite(slot.numbers().norm_term(id))) continue;
        culprit = "first bad gradient: " + layout[id].name();
        break;
    }
    for (const Parameter& p : model_.table().all()) {
        const double bad = updates_.count_nonfinite(p);
        if (bad > 0) {
            culprit = fmt::format("first bad parameter: {} ({:.0f} of {} values are not finite)", p.name, bad,
                                  p.numel());
            break;
        }
    }
    throw Error(
        ExitCode::diverged,
        fmt::format(
            "diverged at step {}: loss {}, gradient norm {}; {}. Lower the learning rate of its group or set "
            "optimizers.clip.",
            slot.step, slot.loss(), slot.numbers().grad_norm(), culprit));
}

void StepRunner::warm_up() {
    // Other ranks have connections to set up, whose collectives want to run.
    const bool rehearsal = ranks_.size() == 1;
    if (rehearsal) runtime_.device().rehearse(true);
    DummySource source(config_);
    const int64_t before = runtime_.ops().flops();
    run_microbatches(period_ - 1, source);  // at which every group is stepped
    recomputed_flops_per_step_ = model_.recomputed_flops();
    flops_per_step_ = runtime_.ops().flops() - before - recomputed_flops_per_step_;
    enqueue_optimizer(slots_[0], false);
    runtime_.synchronize();
    if (rehearsal) runtime_.device().rehearse(false);
    if (config_.cuda.graph) capture_graphs();
}

void StepRunner::initialize(uint64_t seed) {
    model_.parameters().initialize(seed);
    updates_.reset();
    updates_.gather_all();
}

void StepRunner::trace(Timeline* timeline) {
    timeline_ = timeline;
    updates_.trace(timeline);
}

void StepRunner::snapshot(const std::function<void(const Bucket&, Stream&)>& copy) {
    updates_.copy_state(copy);
    runtime_.copy().record(*copied_);
    snapshot_at_ = enqueued_;
}

double StepRunner::idle_ms() {
    if (enqueued_ == 0) return 0;
    const Event& done = *slots_[(enqueued_ - 1) % slots_.size()].step_done;
    if (!done.complete()) return 0;
    runtime_.compute().record(*idle_until_);
    runtime_.compute().synchronize();
    return idle_until_->elapsed_ms_since(done);
}

void StepRunner::await_snapshot() {
    copied_->synchronize();
}

void StepRunner::publish_state() {
    model_.parameters().publish_shards();
    updates_.gather_all();
}

void StepRunner::assign(const std::vector<std::vector<float>>& values) {
    model_.parameters().assign(values);
    updates_.gather_all();
}

void StepRunner::start_clock() {
    runtime_.synchronize();
    runtime_.compute().record(*clock_start_);
    last_clock_ms_ = 0;
    last_counts_ = reducer_.counts();
}

double StepRunner::validate(const ValidationLoader& loader) {
    const int64_t rows = config_.batch.microbatch_tokens / config_.batch.sequence_length;
    const Tensor loss_sum = updates_.statistics().loss_sum();
    double total = 0;
    Batch batch;
    if (timeline_) {
        timeline_->mark(runtime_.compute(), Phase::validation);
        timeline_->mark(runtime_.gather(), Phase::validation);
    }
    updates_.trace(nullptr);  // what validation waits for is not what the next step waits for
    // Batches of all ranks in turn; those behind the last row are padding, so that all ranks run as many.
    for (int64_t row = 0; row < loader.num_rows(); row += rows * ranks_.num_data_ranks()) {
        loader.fill({.first = row + rows * ranks_.data_rank(), .count = rows}, batch);
        upload(batch);
        model_.forward();
        model_.loss(loss_sum, false);
        float sum = 0;
        runtime_.device().copy(&sum, loss_sum.data, loss_sum.bytes(), runtime_.compute());
        runtime_.compute().synchronize();
        total += sum;
    }
    updates_.trace(timeline_);
    if (ranks_.world()) total = ranks_.world()->sum(total);
    return total / static_cast<double>(loader.num_targets());
}

}  // namespace speedrun
