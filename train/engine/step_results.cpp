// Results of a step, and the report of a diverged step.
#include <algorithm>
#include <cmath>

#include "train/engine/finite_check.h"
#include "train/engine/step_runner.h"

namespace speedrun {

StepResult StepRunner::collect() {
    if (uncollected() == 0) throw_internal("there is no step to collect");
    StepSlot& slot = slots_[collected_ % slots_.size()];
    slot.step_done->synchronize();
    CollectiveCounts counts{};
    for (const Reducer::Count* count :
         {&slot.counts.reduce, &slot.counts.gather, &slot.counts.exchange, &slot.values}) {
        count->done->synchronize();
        counts = counts + count->counts;
    }
    if (uncollected() == 1) state_.runtime.synchronize();  // also surfaces errors of the streams
    ++collected_;

    StepResult result;
    result.step = slot.step;
    result.lr_factor = slot.lr_factor;
    result.loss = slot.loss();
    result.grad_norm = slot.numbers().grad_norm();
    result.stop = slot.numbers().stop();
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) report_divergence(slot);
    result.clock_ms = slot.step_done->elapsed_ms_since(*clock_start_);
    result.step_ms = result.clock_ms - last_clock_ms_;
    add_parts(slot, result);
    // The updates of this step waited for the snapshot after the previous step.
    result.copy_stall_ms = state_.snapshots.ms_after(*slot.backward_done, slot.step);
    last_clock_ms_ = result.clock_ms;
    result.communication = counts - last_counts_;
    last_counts_ = counts;
    return result;
}

// After backward, compute is idle until the next step begins if that is enqueued, otherwise until this step ends.
void StepRunner::add_parts(const StepSlot& slot, StepResult& result) {
    const auto time_of = [&](const Event& event) {
        return result.clock_ms + event.elapsed_ms_since(*slot.step_done);
    };
    Interval idle{time_of(*slot.backward_done), result.clock_ms};
    const StepSlot& next = slots_[collected_ % slots_.size()];
    if (state_.ranks.size() > 1 && uncollected() > 0 && next.begun->complete())
        idle.end = std::min(idle.end, time_of(*next.begun));
    const ExposureMeter::Parts parts = state_.reducer.meter().measure(
        *slot.step_done, result.clock_ms, {{last_clock_ms_, result.clock_ms}, idle});
    result.comm_exposed_ms = parts.exposed;
    result.optimizer_ms = parts.other_waits;
    result.comm_ms = parts.collectives;
}

// Backward runs from the last parameter to the first, so the last one with a bad gradient failed first. A non-finite
// parameter is the cause rather than a symptom, and is reported instead.
void StepRunner::report_divergence(const StepSlot& slot) {
    state_.runtime.synchronize();
    std::string culprit = "every gradient's norm is finite, but not that of all";
    const BucketLayout& layout = state_.gradients.layout();
    for (const int id : layout.backward_order()) {
        if (std::isfinite(slot.numbers().norm_term(id))) continue;
        culprit = "first bad gradient: " + layout[id].name();
        break;
    }
    if (const std::string bad = first_bad_parameter(state_); !bad.empty())
        culprit = "first bad parameter: " + bad;
    throw Error(
        ExitCode::diverged,
        fmt::format(
            "diverged at step {}: loss {}, gradient norm {}; {}. Lower the learning rate of its group or set "
            "optimizers.clip.",
            slot.step, slot.loss(), slot.numbers().grad_norm(), culprit));
}

}  // namespace speedrun
