#include <exception>

#include "train/comm/joint_check.h"
#include "train/engine/step_runner.h"

namespace speedrun {

// Mean loss over the targets of the validation stream.
double StepRunner::validate(const ValidationLoader& loader, const std::function<void()>& progressed) {
    refresh_copies();
    Transformer& model = validation_model();
    const BatchShape& batch_shape = model.shape().batch;
    const int64_t rows = batch_shape.tokens / batch_shape.sequence_length;
    const Tensor loss_sum = updates_.statistics().loss_sum();
    double total = 0;
    std::exception_ptr failure;
    Batch batch;
    mark(Phase::validation);
    if (timeline_) timeline_->mark(runtime_.gather(), Phase::validation);
    updates_.trace(nullptr);  // what validation waits for is not what the next step waits for
    // Batches of all ranks in turn; those behind the last row are padding, so that all ranks run as many.
    for (int64_t row = 0; row < loader.num_rows(); row += rows * ranks_.num_data_ranks()) {
        // Ranks whose shards are readable wait for this one in every batch: after a failure it has padding.
        try {
            if (!failure) loader.fill({.first = row + rows * ranks_.data_rank(), .count = rows}, batch);
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure) loader.fill({.first = loader.num_rows(), .count = rows}, batch);
        model.put_batch(batch);
        model.forward(false);
        model.loss(loss_sum, false);
        float sum = 0;
        runtime_.device().copy(&sum, loss_sum.data, loss_sum.bytes(), runtime_.compute());
        runtime_.compute().synchronize();
        total += sum;
        if (progressed) progressed();
    }
    updates_.trace(timeline_);
    check_together(ranks_.world(), [&] {
        if (failure) std::rethrow_exception(failure);
    });
    // Ranks that share matrices have the losses of the same rows.
    if (ranks_.tensor().index > 0) total = 0;
    if (ranks_.world()) total = ranks_.world()->sum(total);
    return total / static_cast<double>(loader.num_targets());
}

// Masters first, in one pass and without other ranks' shards: nearly always all are finite.
std::string StepRunner::first_bad_parameter() {
    double bad = updates_.count_nonfinite();
    if (ranks_.world()) bad = ranks_.world()->max(bad);
    if (bad == 0) return "";
    const std::vector<Parameter>& all = table().all();
    double first = static_cast<double>(all.size()), count = 0;
    for (const Parameter& p : all) {
        const double here = updates_.count_nonfinite(p);
        if (here > 0 && p.id < first) first = p.id, count = here;
    }
    // Ranks that share matrices have counted their own parts.
    const double own = first;
    if (ranks_.world()) first = ranks_.world()->min(first);
    if (ranks_.world()) count = ranks_.world()->max(own == first ? count : 0);
    const auto id = static_cast<size_t>(first);
    if (id >= all.size()) return "a parameter that has no name";
    return fmt::format("{} ({:.0f} of {} values are not finite)", all[id].name, count, all[id].numel());
}

void StepRunner::expect_finite_parameters(int64_t steps) {
    const std::string bad = first_bad_parameter();
    if (bad.empty()) return;
    throw Error(
        ExitCode::diverged,
        fmt::format(
            "diverged in step {}: first bad parameter: {}. Lower the learning rate of its group or set "
            "optimizers.clip.",
            steps - 1, bad));
}

}  // namespace speedrun
