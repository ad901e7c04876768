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
        upload(batch, model, {});
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

}  // namespace speedrun
