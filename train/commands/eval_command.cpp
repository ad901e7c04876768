#include <CLI/CLI.hpp>
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
#include "train/commands/eval.h"
#include "train/commands/finished_run.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/finite_check.h"
#include "train/engine/memory_plan.h"
#include "train/engine/runner_state.h"
#include "train/engine/weight_source.h"

namespace speedrun {

namespace {

std::vector<std::string> validation_files(const Config& config) {
    try {
        return expand_globs(config.data.val);
    } catch (const Error& error) {
        throw Error(error.code(),
                    fmt::format("{}; --text FILE evaluates a text without the run's data", error.what()));
    }
}

}  // namespace

FinishedRun open_finished_run(const std::string& run, const std::vector<std::string>& settings,
                              bool single_sequence) {
    const bool untrained = run.ends_with(".json") && std::filesystem::is_regular_file(run);
    if (run.ends_with(".json") && !std::filesystem::exists(run))
        throw_usage("{}: no such file: not a config and not a run folder", run);
    WeightSource source{WeightSource::Kind::final_weights, ""};
    if (!untrained) source = find_weights(run);
    if (source.kind == WeightSource::Kind::transformers)
        throw_usage(
            "{}: not a run folder: `speedrun import` makes one of a GPT-2 of the transformers library", run);
    std::optional<CheckpointReader> checkpoint;
    if (source.kind == WeightSource::Kind::checkpoint) {
        checkpoint.emplace(source.folder);
        const std::string path = source.folder + "/checkpoint.json";
        for (const CheckpointFile& file : checkpoint->info().files) checkpoint->verify_file(file);
        checkpoint->index();
        check_position(checkpoint->info(), parse_config(checkpoint->info().config, path + ": config", {}),
                       path);
    }
    const bool is_checkpoint_alone = is_checkpoint(run);
    FinishedRun result;
    result.folder = source.run;
    result.config =
        is_checkpoint_alone
            ? parse_config(checkpoint->info().config, source.folder + "/checkpoint.json: config", settings)
            : read_config(untrained ? run : source.run + "/config.json", settings);
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
    } else if (untrained) {
        result.runner->state().initialize(static_cast<uint64_t>(config.seed));
    } else {
        load_weights(source.folder, model.table(), model.parameters());
    }
    if (is_checkpoint_alone) {
        result.data = checkpoint->info().data;
    } else if (!untrained) {
        std::ostringstream data;
        data << std::ifstream(source.run + "/data.json").rdbuf();
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

void add_eval_options(CLI::App& eval, EvalOptions& options) {
    CLI::Option* text =
        eval.add_option(
                "--text", options.text,
                "loss, perplexity and bits per byte of this text file, instead of the validation shards")
            ->type_name("FILE");
    eval.add_option("--json-key", options.json_key,
                    "key of the text in --text: .jsonl, with this option all but .txt; default: text")
        ->needs(text);
    eval.add_option(
            "--multiple-choice", options.multiple_choice,
            "print how often the right ending is the likeliest, instead of the loss; a line of the file: "
            "{\"context\": TEXT, \"endings\": [TEXT, ...], \"label\": INDEX}")
        ->type_name("FILE.jsonl")
        ->excludes(text);
    eval.add_option(
        "--vocab", options.vocabulary,
        "tiktoken file or tokenizer.json for --text and --multiple-choice, if the run has no vocabulary");
    eval.add_flag("--json", options.json,
                  "print the result as one JSON object, with all scores of --multiple-choice");
    eval.footer(
        "--text: the file is read as by `prepare`: a text is one document, and so is each line of JSON Lines. A document is\n"
        "tokenised with the run's vocabulary and cut into rows of the run's length.\n"
        "Bits per byte compare models with different vocabularies.\n"
        "--multiple-choice: the score of an ending is the mean over its tokens of log p(token | all tokens before it),\n"
        "in nats and the config's precision. A text is a separator, the context and an ending. The accuracy is the\n"
        "share of items in which ending `label` has the highest score; the first of equal scores counts. The accuracy\n"
        "without normalisation compares sums instead of means. Context and ending are tokenised separately, so\n"
        "a space between them must be part of one. A text longer than a row is cut from the left. HellaSwag:\n"
        "scripts/hellaswag_to_jsonl.py.\n"
        "Both need the run folder alone, without its data.\n"
        "Exit codes: 0 done; 2 bad usage; 3 a bad line (its number is printed), or an ending longer than a row;\n"
        "4 the run has diverged.");
}

int run_eval(const EvalOptions& options) {
    if (!options.text.empty()) return run_text_loss(options);
    if (!options.multiple_choice.empty()) return run_multiple_choice(options);
    if (!options.vocabulary.empty())
        throw_usage("--vocab: only with --text FILE or --multiple-choice FILE.jsonl");
    const FinishedRun run = open_finished_run(options.run, options.settings, false);
    const Config& config = run.config;
    const std::vector<std::string> files = validation_files(config);
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
    if (options.json) {
        const nlohmann::ordered_json json = {
            {"loss", loss}, {"tokens", loader.num_targets()}, {"dataset", info.name}};
        std::printf("%s\n",
                    json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
        return 0;
    }
    std::printf("validation loss %.6f nats/token over %lld tokens of %s\n", loss,
                static_cast<long long>(loader.num_targets()), info.name.c_str());
    return 0;
}

}  // namespace speedrun
