#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "data/data_identity.h"
#include "data/dataset.h"
#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "train/checkpoint/checkpointer.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/run_position.h"
#include "train/checkpoint/weights.h"
#include "train/commands/commands.h"
#include "train/commands/finished_run.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/finite_check.h"
#include "train/engine/memory_plan.h"
#include "train/engine/runner_state.h"

namespace speedrun {

FinishedRun open_finished_run(const std::string& run, const std::vector<std::string>& settings,
                              bool single_sequence) {
    std::optional<CheckpointReader> checkpoint;
    const bool untrained = run.ends_with(".json") && std::filesystem::is_regular_file(run);
    if (is_checkpoint(run)) {
        checkpoint.emplace(run);
        for (const CheckpointFile& file : checkpoint->info().files) checkpoint->verify_file(file);
        checkpoint->index();
    } else if (!untrained && !std::filesystem::is_regular_file(run + "/config.json")) {
        throw_usage(
            "{}: not a run folder (it has no config.json), not a checkpoint and not a config; runs are in "
            "logs/, or where --out said",
            run);
    }
    FinishedRun result;
    result.config = checkpoint
                        ? parse_config(checkpoint->info().config, run + "/checkpoint.json: config", settings)
                        : read_config(untrained ? run : run + "/config.json", settings);
    if (checkpoint)
        check_position(checkpoint->info(),
                       parse_config(checkpoint->info().config, run + "/checkpoint.json: config", {}),
                       run + "/checkpoint.json");
    Config& config = result.config;
    if (single_sequence)
        config.batch.microbatch_tokens = config.batch.tokens_per_step = config.batch.sequence_length;
    result.runtime = std::make_unique<Runtime>(runtime_options(config));
    result.runner = std::make_unique<StepRunner>(config, *result.runtime);
    Transformer& model = result.runner->state().model();
    if (checkpoint) {
        checkpoint->expect_tensors(checkpoint_tensors(model.table(), config.optimizers));
        RunnerState state(*result.runner);
        load_checkpoint(*checkpoint, *result.runtime, state);
        result.data = checkpoint->info().data;
    } else if (untrained) {
        result.runner->state().initialize(static_cast<uint64_t>(config.seed));
    } else {
        load_weights(run + "/checkpoints/final", model.table(), model.parameters());
        std::ostringstream data;
        data << std::ifstream(run + "/data.json").rdbuf();
        result.data = data.str();
    }
    if (const std::string bad = first_bad_parameter(result.runner->state()); !bad.empty())
        throw Error(ExitCode::diverged,
                    fmt::format("{}: the run has diverged: first bad parameter: {}", run, bad));
    return result;
}

void forward_batch(const FinishedRun& run, Batch& batch, int32_t separator) {
    Transformer& model = run.runner->state().validation_model();
    complete(batch, model.description().columns(),
             {.sequence_length = model.shape().batch.sequence_length,
              .separator = run.config.data.document_mask ? separator : BatchLayout::kNoSeparator});
    model.put_batch(batch);
    model.forward(false);
}

// Warns if the run validated on other shards than its config now refers to.
void compare_data(const FinishedRun& run, const SplitIdentity& val, const std::string& name) {
    if (run.data.empty()) return;
    std::vector<std::string> differences;
    try {
        differences = split_differences("data.val", data_identity_from_json(run.data).val, val);
    } catch (const JsonError& error) {
        differences.push_back(error.what());
    }
    if (differences.empty()) return;
    std::fprintf(stderr, "warning: these are not the shards that %s validated on: %s\n", name.c_str(),
                 fmt::format("{}", fmt::join(differences, "; ")).c_str());
}

int run_eval(const EvalOptions& options) {
    const FinishedRun run = open_finished_run(options.run, options.settings, false);
    const Config& config = run.config;
    const std::vector<std::string> files = expand_globs(config.data.val);
    DatasetInfo unlisted;
    unlisted.name = "shards without dataset.json";
    const DatasetInfo info = find_dataset_info(files).value_or(unlisted);
    compare_data(run, identify_split(files), options.run);
    const TokenDataset data = open_dataset(config, config.data.val, "data.val");
    const ValidationLoader loader(data, validation_options(config));
    const double loss = run.runner->validate(loader);
    if (!std::isfinite(loss)) {
        throw Error(ExitCode::diverged,
                    fmt::format("{}: the validation loss is {}: the run has diverged", options.run, loss));
    }
    std::printf("validation loss %.6f nats/token over %lld tokens of %s\n", loss,
                static_cast<long long>(loader.num_targets()), info.name.c_str());
    return 0;
}

}  // namespace speedrun
