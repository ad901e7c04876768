// import and export: exchange with the transformers library.
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "data/durable_file.h"
#include "train/commands/commands.h"
#include "train/commands/finished_run.h"
#include "train/commands/model_card.h"
#include "train/commands/run_tokenizer.h"
#include "train/config/config_json.h"
#include "train/hf/hf_files.h"
#include "train/hf/hf_gpt2.h"
#include "train/hf/hf_speedrun.h"
#include "train/hf/hf_tokenizer.h"
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

int64_t sequence_of(const Config& config) {
    return config.in_validation().batch.sequence_length;
}

std::string described_tokens(const DatasetInfo& info) {
    return fmt::format("{} tokens: {}", info.vocab_size,
                       info.tokenizer == "bytes" ? "bytes and the separator" : "byte-level BPE");
}

// Stores the tokenizer.json of an imported folder in the run. Returns the reason if it is not usable; empty else.
std::string store_hf_tokenizer(RunFolder& run, const std::string& folder) {
    const std::string path = folder + "/tokenizer.json";
    std::error_code error;
    if (!fs::exists(path, error)) return "";
    try {
        const bool bytes = is_byte_vocabulary(path);
        DatasetInfo info;
        info.name = name_of_folder(folder);
        info.tokenizer = bytes ? "bytes" : "gpt2";
        const auto tokenizer = make_tokenizer(info.tokenizer, bytes ? "" : path);
        info.vocab_size = tokenizer->vocab_size();
        info.separator = tokenizer->separator();
        run.write_tokenizer(info, bytes ? "" : path);
        return "";
    } catch (const Error& failure) {
        return fmt::format("{}; sample and export need --vocab FILE", failure.what());
    }
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
    if (const std::string reason = store_hf_tokenizer(run, options.folder); !reason.empty())
        std::fprintf(stderr, "warning: the run has no tokenizer: %s\n", reason.c_str());
    std::printf("%s: GPT-2 of %lld layers x %lld, %lld positions, vocabulary %lld\n", run.path().c_str(),
                static_cast<long long>(config.model.parts.layers.count),
                static_cast<long long>(config.model.model_dim),
                static_cast<long long>(config.batch.sequence_length),
                static_cast<long long>(config.model.vocab_size));
    return 0;
}

int run_export(const ExportOptions& options) {
    const FinishedRun run = open_finished_run(options.run, {"device=cpu"}, true);
    const RunTokens tokens = tokens_of(run, options.vocabulary);
    const bool has_tokenizer = tokens.info.tokenizer == "bytes" || !tokens.vocabulary.empty();
    const ModelConfig& model = run.config.model;
    const bool is_gpt2 = gpt2_problems(model).empty();
    const HfExport how{.dtype = choice_of<DType>(options.dtype),
                       .separator = tokens.known || has_tokenizer ? tokens.info.separator : -1};
    const ReadMaster read = [&](const Parameter& p, float* host) {
        run.runner->state().read_master(p, host);
    };
    const ParameterTable& table = run.runner->state().model().table();
    HfStaging staging(options.folder);
    if (is_gpt2)
        write_hf_gpt2(staging.path(), model, table, read, how);
    else
        write_hf_speedrun(staging.path(), run.config.in_validation(), table, read, how);
    if (has_tokenizer) {
        const auto tokenizer = tokenizer_of(run, options.vocabulary);  // checks the vocabulary
        write_hf_tokenizer(staging.path(), {.tokenizer = tokens.info.tokenizer,
                                            .vocabulary = tokens.vocabulary,
                                            .longest = sequence_of(run.config)});
    }
    if (how.separator >= 0)
        write_generation_config(staging.path(), {.separator = how.separator, .has_cache = is_gpt2});
    write_file(staging.path() + "/README.md",
               model_card(run, {.title = name_of_folder(options.folder),
                                .architecture = is_gpt2 ? "GPT-2" : "speedrun",
                                .has_code = !is_gpt2,
                                .tokens = has_tokenizer ? described_tokens(tokens.info) : "",
                                .dataset = tokens.known ? tokens.info.name : ""}));
    staging.finish();
    if (!has_tokenizer)
        std::fprintf(stderr,
                     "warning: no tokenizer.json: the run has no vocabulary, name it with --vocab FILE\n");
    std::printf("%s: %s, %s%s\n", options.folder.c_str(), is_gpt2 ? "GPT2LMHeadModel" : "SpeedrunForCausalLM",
                options.dtype.c_str(), has_tokenizer ? ", tokenizer" : "");
    return 0;
}

}  // namespace speedrun
