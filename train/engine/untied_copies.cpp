// Parameters that are untied after a stage (Parameter::copy_of), such as the head's matrix. Until then the model does
// not use them and updates leave them unchanged. refresh_copies() copies their sources at the first step that uses
// them, and before validation, checkpoints and read_master. After a resume it follows the checkpoint's step.
#include <algorithm>

#include "kernels/device/error.h"
#include "train/engine/train_state.h"

namespace speedrun {

void TrainState::check_copies() const {
    for (const Parameter& p : table().all()) {
        if (p.copy_of < 0) continue;
        const Parameter& source = table()[p.copy_of];
        const BucketLayout& layout = model().parameters().layout();
        const int group = layout.bucket_of(p).group, of_source = layout.bucket_of(source).group;
        if (group != of_source)
            throw_usage(
                "optimizers.groups: {} is trained by group {} and {} by group {}, but it begins as a copy with that one's "
                "state (model.head.untied_after): give both one group",
                p.name, group, source.name, of_source);
        if (layout.whole_matrix(group))
            throw_usage(
                "optimizers.groups[{}]: {} begins as a copy of {} with the state of its optimizer "
                "(model.head.untied_after), which works for optimizers of elements (adamw), not of whole matrices",
                group, p.name, source.name);
        const OptimizerGroupConfig& trained_by = config.optimizers.groups[static_cast<size_t>(group)];
        const int64_t first = config.schedule.end_step(config.model.parts.head.untied_after);
        // Config::in_stage has no stages, so the end of another stage is unknown.
        const bool known = !config.schedule.stages.empty();
        if (known && !begins_period(trained_by, first))
            throw_usage(
                "model.head.untied_after {}: the stage ends after step {}, between two steps of optimizers.groups[{}] "
                "(every {}): end it at a multiple of that",
                config.model.parts.head.untied_after, first, group, trained_by.every);
    }
}

void TrainState::copy_unused(const RunStage& stage) {
    const ParameterId unused = models[stage.model]->description().inactive;
    if (unused != kNoParameter) schedule.copy(table()[table()[unused].copy_of], table()[unused]);
}

void TrainState::refresh_copies_before(int64_t step) {
    const int64_t stage = config.schedule.stage_of(step);
    if (stage == 0 || step != config.schedule.first_step(stage)) return;
    if (models[stage_of(step).model]->description().inactive == kNoParameter) refresh_copies();
}

void TrainState::refresh_copies() {
    if (steps >= 0) copy_unused(stage_of(std::max<int64_t>(0, steps - 1)));
}

}  // namespace speedrun
