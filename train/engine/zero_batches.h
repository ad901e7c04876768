// What a run warms up on.
#pragma once

#include "data/further_targets.h"
#include "train/engine/prefix_targets.h"
#include "train/engine/step_runner.h"

namespace speedrun {

// Endless zeros: every token is 0 and counts.
class ZeroBatches final : public BatchSource {
  public:
    // Microbatches of a config of one stage.
    ZeroBatches(const Config& config, const ContextPart& part) {
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
        add_further_targets(batch_, config.model.loss().num_tokens(), prefixes_in(made_up_prefixes(config)));
        take_part(batch_, sequence_length, part);
    }
    const Batch& next() override { return batch_; }

  private:
    Batch batch_;
};

}  // namespace speedrun
