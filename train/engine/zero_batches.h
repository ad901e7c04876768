// Batches of zeros, for warm-up.
#pragma once

#include "train/engine/prefix_targets.h"
#include "train/engine/step_runner.h"

namespace speedrun {

// Repeats one microbatch: all tokens are 0 and all targets count.
class ZeroBatches final : public BatchSource {
  public:
    ZeroBatches(const Transformer& model, int64_t tokens_per_step) {
        const BatchShape& shape = model.shape().batch;
        batch_.tokens.assign(static_cast<size_t>(shape.tokens), 0);
        batch_.targets = batch_.tokens;
        batch_.step_targets = tokens_per_step;
        complete(batch_, model.description().columns(),
                 {.sequence_length = shape.sequence_length,
                  .part = shape.part,
                  .prefixes = made_up_prefixes(model.shape().config)});
    }
    const Batch& next() override { return batch_; }

  private:
    Batch batch_;
};

}  // namespace speedrun
