#include "train/commands/row_losses.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

RowLosses::RowLosses(const FinishedRun& run)
    : run_(run),
      model_(run.runner->state().validation_model()),
      loss_sum_(run.runtime->device(), "loss", MemoryCategory::workspace, size_of(DType::f32)) {}

int64_t RowLosses::length() const {
    return model_.shape().batch.sequence_length;
}

std::vector<std::vector<float>> RowLosses::of(std::span<const std::vector<int32_t>> rows) {
    std::vector<std::vector<float>> result;
    const auto at_once = static_cast<size_t>(model_.tokens() / length());
    for (size_t first = 0; first < rows.size(); first += at_once) {
        const auto part = rows.subspan(first, std::min(at_once, rows.size() - first));
        const std::vector<float> losses = microbatch(part);
        for (size_t r = 0; r < part.size(); ++r) {
            const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(r) * length();
            result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(part[r].size()) - 1);
            if (!std::all_of(result.back().begin(), result.back().end(),
                             [](float x) { return std::isfinite(x); }))
                throw Error(ExitCode::diverged, "the model's losses are not finite: the run has diverged");
        }
    }
    return result;
}

std::vector<float> RowLosses::microbatch(std::span<const std::vector<int32_t>> rows) {
    Batch batch;
    batch.tokens.assign(static_cast<size_t>(model_.tokens()), 0);
    batch.targets.assign(batch.tokens.size(), -1);
    for (size_t r = 0; r < rows.size(); ++r) {
        const std::vector<int32_t>& tokens = rows[r];
        const auto begin = static_cast<std::ptrdiff_t>(r) * length();
        std::copy(tokens.begin(), tokens.end() - 1, batch.tokens.begin() + begin);
        std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + begin);
    }
    // Each row is one document, so no separator masks keys.
    forward_batch(run_, batch, BatchLayout::kNoSeparator);
    Stream& stream = run_.runtime->compute();
    model_.loss(loss_sum_.tensor(DType::f32, {1}), false);
    const Tensor losses = model_.losses();
    std::vector<float> values(static_cast<size_t>(losses.numel()));
    run_.runtime->device().copy(values.data(), losses.data, losses.bytes(), stream);
    stream.synchronize();
    return values;
}

}  // namespace speedrun
