// Models that the stages of a run need, and the microbatches of their steps.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/model/transformer.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct RunStage {
    size_t model = 0;                               // index into RunStages::shapes
    int64_t tokens_per_step = 0, microbatches = 1;  // microbatches of this rank per step
    int64_t number = 0;                             // index in the schedule
};

struct RunStages {
    std::vector<ModelShape> shapes;  // unique; stages of equal shape share a model
    std::vector<RunStage> stages;
    RunStage validation;  // one microbatch per step

    int64_t max_microbatches() const;  // per step
};

RunStages run_stages(const Config& config, const Ranks& ranks);

// Returns the columns of a model's batches without allocating one (Transformer::columns).
std::vector<Column> columns_of(const ModelShape& shape);

}  // namespace speedrun
