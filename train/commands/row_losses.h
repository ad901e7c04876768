// Losses of a model on rows of tokens, one document per row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/commands/finished_run.h"

namespace speedrun {

class RowLosses {
  public:
    explicit RowLosses(const FinishedRun& run);

    int64_t length() const;  // longest row, without its first token

    // Returns the loss of each token of a row but the first, given all tokens before it, in nats. A row has 2 to length() + 1
    // tokens. Computed in microbatches of the validation model. Throws Error(diverged) for a loss that is not finite.
    std::vector<std::vector<float>> of(std::span<const std::vector<int32_t>> rows);

  private:
    std::vector<float> microbatch(std::span<const std::vector<int32_t>> rows);

    const FinishedRun& run_;
    Transformer& model_;
    Buffer loss_sum_;
};

}  // namespace speedrun
