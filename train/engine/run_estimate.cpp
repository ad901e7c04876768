#include "train/engine/run_estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"
#include "train/engine/run_stages.h"
#include "train/engine/step_loop.h"
#include "train/runlog/op_profile.h"

namespace speedrun {

namespace {

// Measures the time of a step. config: of one stage.
double measured_step_ms(const Config& config, Runtime& runtime, double seconds) {
    SyntheticBatches source(config);
    StepRunner runner(config, runtime);
    runner.warm_up();
    runner.state().initialize(static_cast<uint64_t>(config.seed));
    StepLoop loop(runner, source);
    const int64_t period = runner.state().period;
    std::vector<double> first = loop.run(1 + period), means;
    add_periods(first, period, means);
    const double left_ms = seconds * 1e3 - std::accumulate(first.begin(), first.end(), 0.0);
    const auto more = static_cast<int64_t>(std::floor(left_ms / (means[0] * static_cast<double>(period))));
    if (more > 1) {  // includes the lead-in
        means.clear();
        add_periods(loop.run(1 + (more - 1) * period), period, means);
    }
    runtime.synchronize();
    return mean_of_middle_half(means);
}

}  // namespace

double RunEstimate::train_ms() const {
    double sum = 0;
    for (const EstimatedStage& stage : stages)
        sum += stage.step_ms * static_cast<double>(stage.end_step - stage.first_step);
    return sum;
}

RunEstimate estimate_run(const Config& config, double seconds) {
    const Ranks ranks;
    Runtime runtime(runtime_options(config, ranks));
    require_memory(config, runtime.device(), ranks);
    const std::vector<RunStage> stages = run_stages(config, ranks).stages;
    const auto first_equal = [&](size_t i) {
        return static_cast<size_t>(std::find_if(stages.begin(), stages.end(),
                                                [&](const RunStage& other) {
                                                    return other.model == stages[i].model &&
                                                           other.tokens_per_step == stages[i].tokens_per_step;
                                                }) -
                                   stages.begin());
    };
    int64_t num_shapes = 0;
    for (size_t i = 0; i < stages.size(); ++i) num_shapes += first_equal(i) == i;

    RunEstimate estimate;
    estimate.device = runtime.description();
    for (size_t i = 0; i < stages.size(); ++i) {
        const auto number = static_cast<int64_t>(i);
        const double ms = first_equal(i) < i ? estimate.stages[first_equal(i)].step_ms
                                             : measured_step_ms(config.in_stage(number), runtime,
                                                                seconds / static_cast<double>(num_shapes));
        estimate.stages.push_back({config.schedule.first_step(number), config.schedule.end_step(number), ms});
    }
    return estimate;
}

}  // namespace speedrun
