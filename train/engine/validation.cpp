#include <exception>

#include "train/comm/joint_check.h"
#include "train/engine/step_runner.h"

namespace speedrun {

double StepRunner::validate(const ValidationLoader& loader, const std::function<void()>& progressed) {
    Runtime& runtime = state_.runtime;
    const Ranks& ranks = state_.ranks;
    state_.refresh_copies();
    Transformer& model = state_.validation_model();
    const BatchShape& batch_shape = model.shape().batch;
    const int64_t rows = batch_shape.tokens / batch_shape.sequence_length;
    const Tensor loss_sum = state_.schedule.statistics().loss_sum();
    double total = 0;
    std::exception_ptr failure;
    Batch batch;
    microbatches_.mark(Phase::validation);
    if (timeline_) timeline_->mark(runtime.gather(), Phase::validation);
    state_.schedule.trace(nullptr);  // waits of validation do not count for the next step
    // Ranks alternate. Batches after the last row are padding, so that all ranks run the same number.
    for (int64_t row = 0; row < loader.num_rows(); row += rows * ranks.num_data_ranks()) {
        // Other ranks wait for this one in every batch, so after a failure its batches are padding.
        try {
            if (!failure) loader.fill({.first = row + rows * ranks.data_rank(), .count = rows}, batch);
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure) loader.fill({.first = loader.num_rows(), .count = rows}, batch);
        model.put_batch(batch);
        model.forward(false);
        model.loss(loss_sum, false);
        float sum = 0;
        runtime.device().copy(&sum, loss_sum.data, loss_sum.bytes(), runtime.compute());
        runtime.compute().synchronize();
        total += sum;
        if (progressed) progressed();
    }
    state_.schedule.trace(timeline_);
    check_together(ranks.world(), [&] {
        if (failure) std::rethrow_exception(failure);
    });
    // Tensor ranks hold the losses of the same rows: count them once.
    if (ranks.tensor().index > 0) total = 0;
    if (ranks.world()) total = ranks.world()->sum(total);
    return total / static_cast<double>(loader.num_targets());
}

}  // namespace speedrun
