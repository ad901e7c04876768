// What the stages of a run are made of: the models that they need, and the microbatches of their steps.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/model/transformer.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct RunStage {
    size_t model = 0;                               // in RunStages::shapes
    int64_t tokens_per_step = 0, microbatches = 1;  // microbatches of this rank
    int64_t number = 0;                             // in the schedule
};

struct RunStages {
    std::vector<ModelShape> shapes;  // each once: stages of the same shape have the same model
    std::vector<RunStage> stages;
    RunStage validation;  // of one microbatch a step

    int64_t most_microbatches() const;  // of a step
};

RunStages run_stages(const Config& config, const Ranks& ranks);

// Columns of the batches of a model, without memory for one (Transformer::columns).
std::vector<Column> columns_of(const ModelShape& shape);

}  // namespace speedrun
