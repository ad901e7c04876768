#include "train/engine/run_stages.h"

#include <algorithm>

#include "train/model/build_model.h"

namespace speedrun {

int64_t RunStages::max_microbatches() const {
    int64_t most = 1;
    for (const RunStage& stage : stages) most = std::max(most, stage.microbatches);
    return most;
}

RunStages run_stages(const Config& config, const Ranks& ranks) {
    RunStages all;
    const auto stage_of = [&](const Config& stage, bool trains) {
        const BatchConfig& batch = stage.batch;
        const ModelShape shape{stage.model,
                               {.tokens = batch.microbatch_tokens,
                                .sequence_length = batch.sequence_length,
                                .longest_sequence = config.longest_sequence(),
                                .part = ranks.part(),
                                .tensor = ranks.tensor()},
                               trains};
        const auto found = std::find(all.shapes.begin(), all.shapes.end(), shape);
        const auto model = static_cast<size_t>(found - all.shapes.begin());
        if (found == all.shapes.end()) all.shapes.push_back(shape);
        return RunStage{.model = model,
                        .tokens_per_step = batch.tokens_per_step,
                        .microbatches = stage.microbatches_per_step(ranks.num_data_ranks())};
    };
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        all.stages.push_back(stage_of(config.in_stage(i), true));
        all.stages.back().number = i;
    }
    all.validation = stage_of(config.in_validation(), false);
    return all;
}

std::vector<Column> columns_of(const ModelShape& shape) {
    return build_model(shape.config, shape.batch, {.logit_rows = shape.batch.local_tokens()}).columns();
}

}  // namespace speedrun
