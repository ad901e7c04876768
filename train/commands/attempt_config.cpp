#include "train/commands/attempt_config.h"

#include <filesystem>
#include <numeric>
#include <set>

#include "data/dataset.h"
#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "data/text_file.h"
#include "kernels/cuda/device/cuda_info.h"
#include "kernels/device/error.h"
#include "train/commands/effect_runs.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/records/dense_rule.h"
#include "train/records/record_folder.h"
#include "train/records/recorded_config.h"
#include "train/runlog/build_info.h"
#include "train/runlog/environment.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

std::vector<int64_t> seeds_of(const RecordAttemptOptions& options) {
    std::vector<int64_t> seeds = options.seeds;
    if (seeds.empty()) {
        if (options.runs < 1)
            throw_usage("--runs is missing: how many runs, each with a seed of its own; or --effect 1%");
        seeds.resize(static_cast<size_t>(options.runs));
        std::iota(seeds.begin(), seeds.end(), options.first_seed);
    }
    if (options.runs > 0 && options.runs != static_cast<int64_t>(seeds.size()))
        throw_usage("--runs {}, but --seeds lists {}", options.runs, seeds.size());
    std::set<int64_t> seen;
    for (const int64_t seed : seeds) {
        if (!seen.insert(seed).second)
            throw_usage("--seeds: {} is there twice; runs of one seed are no independent samples", seed);
    }
    return seeds;
}

// Errors that would prevent writing a record are reported before the first run.
void check_name(const std::string& name) {
    const bool plain =
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
        std::string::npos;
    if (!plain || name.empty() || name.front() == '.' || name.front() == '-')
        throw_usage("--name {}: a folder's name of letters, digits, '.', '_' and '-' is expected", name);
}

void check_text(const std::string& text) {
    try {
        (void)nlohmann::json(text).dump();
    } catch (const nlohmann::json::type_error&) {
        throw_usage("--what: the text is not valid UTF-8");
    }
}

std::vector<ShardInfo> check_side(const Attempt& a, const Config& config, const std::string& name) {
    const Track& track = a.track;
    if (config.record.track != track.name)
        throw_usage("{}: record.track is '{}', the attempt's is '{}'", name, config.record.track, track.name);
    if (!config.model.init_from.empty())
        throw_usage("{}: model.init_from is '{}'; runs of a track start from random weights", name,
                    config.model.init_from);
    return expect_data_of_track(track, a.track_class,
                                {expand_globs(config.data.train), expand_globs(config.data.val),
                                 config.data.val_tokens, config.record.target_loss});
}

std::string machine_text(const World& world) {
    const Environment e = read_environment();
    std::string text = fmt::format("{}, {}, {} cores, {} ranks", e.host, e.cpu, e.cores, world.size());
    for (const CudaGpu& gpu : e.cuda.gpus) text += ", " + gpu.name;
    return text;
}

}  // namespace

AttemptSide read_attempt_side(const std::string& source, const std::vector<std::string>& settings,
                              const std::string& out) {
    if (!is_record_folder(source)) {
        if (fs::is_directory(source))
            throw_usage("{}: a folder without record.json; a config or a record is expected", source);
        return {read_config(source, settings), fs::path(source).stem().string(), "", read_text_file(source)};
    }
    const Record record = read_record(source);
    AttemptSide side{recorded_config(record.config, source + "/record.json: config", settings), record.name,
                     "", record.config};
    const fs::path folder = fs::path(out) / record.track / record.folder_name();
    // A config with settings differs from the record's.
    if (settings.empty() && fs::exists(folder) && fs::equivalent(folder, source))
        side.record = record.folder_name();
    return side;
}

Attempt read_attempt(const RecordAttemptOptions& options, bool first_rank) {
    Attempt a;
    check_text(options.what);
    check_text(options.baseline_what);
    RecordAttemptOptions sized = options;
    if (!options.effect.empty()) sized.runs = runs_for_effect(options);
    a.seeds = seeds_of(sized);
    a.candidate = read_attempt_side(options.config, options.settings, options.out);
    a.systems_only = options.systems_only || !options.baseline_binary.empty();
    a.baseline_binary = options.baseline_binary;
    if (!a.baseline_binary.empty()) {
        if (!options.against.empty())
            throw_usage("--baseline-binary: both builds train CONFIG, so --against is left out");
        a.baseline = a.candidate;
    }
    if (!options.name.empty()) a.candidate.name = options.name;
    check_name(a.candidate.name);
    if (options.against.empty() &&
        (!options.against_settings.empty() || !options.baseline_name.empty() || options.systems_only))
        throw_usage("--against-set, --baseline-name and --systems-only need --against");
    if (!options.against.empty())
        a.baseline = read_attempt_side(options.against, options.against_settings, options.out);
    if (!options.baseline_name.empty()) {
        if (is_record_folder(options.against) && options.against_settings.empty())
            throw_usage("--baseline-name {}: {} is a record already", options.baseline_name, options.against);
        check_name(options.baseline_name);
        a.baseline->name = options.baseline_name;
    }
    if (a.baseline && a.baseline->name == a.candidate.name)
        throw_usage("both sides are called '{}': give the candidate another --name", a.candidate.name);
    const std::string& track = a.candidate.config.record.track;
    if (track.empty())
        throw_usage("{}: record.track is empty: name the track it is an attempt at", options.config);
    a.track = read_track((fs::path(options.out) / track).string());
    a.track_class = a.track.class_named(options.track_class);
    if (a.systems_only && a.track_class.by_loss())
        throw_usage(
            "systems-only leaves the losses alone, and class {} compares them: take a class of a target",
            a.track_class.name);
    if (!first_rank) return a;  // hash the files on one rank only
    a.data = check_side(a, a.candidate.config, a.candidate.name);
    if (a.baseline) check_side(a, a.baseline->config, a.baseline->name);
    return a;
}

void expect_of_class(const Attempt& a, const AttemptSide& side, const HardwareClass& hardware) {
    const Config& config = side.config;
    ClassFacts facts{.parameters = parameters_of(config.model, config.longest_sequence()).whole_numel(),
                     .hardware = hardware};
    if (a.track_class.dense) facts.not_dense = dense_problem(config.model, config.longest_sequence());
    facts.tokens = config.tokens_before(config.schedule.total_steps());
    const std::string problem = a.track_class.problem(facts);
    if (!problem.empty())
        throw_usage("{} breaks a rule of class {} of track {}: {}", side.name, a.track_class.name,
                    a.track.name, problem);
}

AttemptTerms terms_of(const Attempt& a, const World& world) {
    AttemptTerms terms;
    terms.name = a.candidate.name;
    terms.track = a.track.name;
    terms.race = a.track_class.name;
    terms.systems_only = a.systems_only;
    if (!a.baseline_binary.empty()) terms.baseline_binary_sha256 = sha256_file(a.baseline_binary);
    terms.seeds = a.seeds;
    terms.git_sha = build_info().git_sha;
    terms.binary_sha256 = sha256_file("/proc/self/exe");  // distinguishes build flags and uncommitted changes
    terms.machine = machine_text(world);
    terms.config = config_to_json(a.candidate.config);
    if (a.baseline)
        terms.baseline = {a.baseline->name, a.baseline->record, config_to_json(a.baseline->config)};
    return terms;
}

}  // namespace speedrun
