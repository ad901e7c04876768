// import and export: exchange with the transformers library.
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "train/commands/commands.h"
#include "train/commands/finished_run.h"
#include "train/commands/separator.h"
#include "train/config/config_json.h"
#include "train/hf/hf_gpt2.h"
#include "train/model/build_model.h"
#include "train/runlog/run_folder.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Returns the config of a run with these weights: one sequence per step, and an optimizer, which a config requires.
std::string config_text(const HfGpt2& hf) {
    Config config;
    config.model = hf.model;
    config.batch.sequence_length = hf.num_positions;
    config.batch.microbatch_tokens = config.batch.tokens_per_step = hf.num_positions;
    config.data.document_mask = false;  // GPT-2 was trained without document masks
    config.optimizers.groups.resize(1);
    config.optimizers.groups[0].params = {"*"};
    return config_to_json(config);
}

std::string name_of_folder(const std::string& folder) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

int run_import(const ImportOptions& options) {
    const HfGpt2 hf = read_hf_config(options.folder);
    const Config config = parse_config(config_text(hf), options.folder, options.settings);
    expect_hf_fits(options.folder, config.model, config.longest_sequence());
    const ParameterTable table = parameters_of(config.model, config.longest_sequence());
    const auto values = read_hf_weights(options.folder, table, config.model);
    RunFolder run(options.out, options.name.empty() ? name_of_folder(options.folder) : options.name);
    run.write_config(config_to_json(config));
    save_weights(run.path() + "/checkpoints/final", table, [&](const Parameter& p, float* host) {
        const std::vector<float>& from = values[static_cast<size_t>(p.id)];
        std::memcpy(host, from.data(), from.size() * sizeof(float));
    });
    std::printf("%s: GPT-2 of %lld layers x %lld, %lld positions, vocabulary %lld\n", run.path().c_str(),
                static_cast<long long>(config.model.parts.layers.count),
                static_cast<long long>(config.model.model_dim),
                static_cast<long long>(config.batch.sequence_length),
                static_cast<long long>(config.model.vocab_size));
    return 0;
}

int run_export(const ExportOptions& options) {
    const FinishedRun run = open_finished_run(options.run, {"device=cpu"}, true);
    const ReadMaster read = [&](const Parameter& p, float* host) {
        run.runner->state().read_master(p, host);
    };
    write_hf_gpt2(options.folder, run.config.model, run.runner->state().model().table(), read,
                  {.dtype = choice_of<DType>(options.dtype), .separator = separator_of(run.config)});
    std::printf("%s: GPT2LMHeadModel, %s\n", options.folder.c_str(), options.dtype.c_str());
    return 0;
}

}  // namespace speedrun
