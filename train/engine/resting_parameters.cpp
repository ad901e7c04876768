// Parameters that rest until a stage uses them (Parameter::copy_of), such as the matrix of a head that is tied at first. Steps
// leave them alone. refresh_copies() makes them equal to their sources: at the first step that uses them, and before
// validation, checkpoints and read_master. After a resume it does so too, by the step that the checkpoint names.
#include <algorithm>

#include "kernels/device/error.h"
#include "train/config/update_period.h"
#include "train/engine/step_runner.h"

namespace speedrun {

void StepRunner::check_copies() const {
    for (const Parameter& p : models_.front()->table().all()) {
        if (p.copy_of < 0) continue;
        const Parameter& source = models_.front()->table()[p.copy_of];
        const BucketLayout& layout = models_.front()->parameters().layout();
        const int group = layout.bucket_of(p).group, of_source = layout.bucket_of(source).group;
        if (group != of_source)
            throw_usage(
                "optimizers.groups: {} is trained by group {} and {} by group {}, but it begins as a copy with that one's "
                "state (model.head.untied_after): give both one group",
                p.name, group, source.name, of_source);
        if (layout.whole_matrix(group))
            throw_usage(
                "optimizers.groups[{}]: {} begins as a copy of {} with the state of its optimizer "
                "(model.head.untied_after), which works for optimizers of elements (adamw, lion), not of whole matrices",
                group, p.name, source.name);
        const OptimizerGroupConfig& trained_by = config_.optimizers.groups[static_cast<size_t>(group)];
        const int64_t first = config_.schedule.end_step(config_.model.parts.head.untied_after);
        // A config of one stage (Config::in_stage) does not know where another ends.
        const bool known = !config_.schedule.stages.empty();
        if (known && !begins_period(trained_by, first))
            throw_usage(
                "model.head.untied_after {}: the stage ends after step {}, between two steps of optimizers.groups[{}], "
                "which has every {}: end it at a multiple of that",
                config_.model.parts.head.untied_after, first, group, trained_by.every);
    }
}

void StepRunner::copy_resting(const RunStage& stage) {
    const int resting = models_[stage.model]->resting();
    if (resting >= 0) schedule_.copy(table()[table()[resting].copy_of], table()[resting]);
}

void StepRunner::wake_copies(int64_t step) {
    const int64_t stage = config_.schedule.stage_of(step);
    if (stage == 0 || step != config_.schedule.first_step(stage)) return;
    if (models_[stage_of(step).model]->resting() < 0) refresh_copies();
}

void StepRunner::refresh_copies() {
    if (steps_ >= 0) copy_resting(stage_of(std::max<int64_t>(0, steps_ - 1)));
}

}  // namespace speedrun
