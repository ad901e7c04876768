#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <random>
#include <set>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/comm/joint_check.h"
#include "train/comm/world.h"
#include "train/commands/attempt_config.h"
#include "train/commands/records_trial.h"
#include "train/commands/train_run.h"
#include "train/engine/memory_plan.h"
#include "train/model/build_model.h"
#include "train/records/gzip.h"
#include "train/records/record_checks.h"
#include "train/records/record_folder.h"
#include "train/runlog/environment.h"
#include "train/runlog/train_clock.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kTrialFooter =
    "Prints one JSON object on stdout, also for a refusal; errors are on stderr too:\n"
    "  loss, train_s     means over the runs: last validation (nats per token), training time; null: diverged\n"
    "  wall_s            of the whole process until now, start-up, validation and checks included\n"
    "  tokens, parameters   that a run trains on; numbers of the model\n"
    "  class             its name, whether its rules are met, and why\n"
    "  problems          of the checks of `records verify`: data, lines, clock, schedule, losses\n"
    "  runs              seed, status, loss, train_s, startup_s of each; folder: their files\n"
    "  exit_code         0 the figures count; 2 bad config, or a rule of the class is broken; 3 data, or a\n"
    "                    problem; 4 diverged; 130/143/138 stopped by a signal\n"
    "Seeds are drawn from the system's random source and printed afterwards; no option chooses one.\n"
    "Example: speedrun records trial configs/kjv_small_batch.json --set schedule.steps=200";

// Returns different seeds at each call. 31 bits: readable by any program.
std::vector<int64_t> hidden_seeds(int64_t count) {
    std::random_device source;
    std::set<int64_t> seeds;
    while (static_cast<int64_t>(seeds.size()) < count) seeds.insert(source() & 0x7fffffff);
    return {seeds.begin(), seeds.end()};
}

struct Trial {
    Record record;
    std::vector<std::string> problems;
    std::string folder;
};

// Applies the rules of `records attempt` that need neither a baseline nor a second run.
Trial judge(const Attempt& attempt, const AttemptFolder& folder, const RecordTrialOptions& options) {
    AttemptFolder::Result result = folder.result();
    Trial trial{.record = std::move(result.record), .problems = {}, .folder = folder.path()};
    Record& record = trial.record;
    record.data = attempt.data;
    record.target_loss = attempt.candidate.config.record.target_loss;
    count_parameters(record, attempt.track, record.name);
    evaluate(record, attempt.track);
    std::vector<std::vector<RunLine>> lines;
    for (const auto& [name, bytes] : result.files) lines.push_back(read_run_lines(gunzip(bytes, name), name));
    const std::string place = (fs::path(options.tracks) / record.track / record.folder_name()).string();
    trial.problems = implausible(place, record, attempt.track, lines);
    return trial;
}

Json trial_json(const Trial& trial, const Config& config, int code) {
    const Record& record = trial.record;
    const Moments &loss = record.statistics.candidate.loss, &time = record.statistics.candidate.train_ms;
    const bool all_done = loss.count == static_cast<int64_t>(record.runs.size());
    Json runs = Json::array(), verdict = {{"name", record.race}, {"met", false}, {"why", ""}};
    for (const RecordRun& run : record.runs)
        runs.push_back({{"seed", run.seed},
                        {"status", run.status},
                        {"loss", run.done() ? Json(run.loss()) : Json(nullptr)},
                        {"train_s", run.train_ms * 1e-3},
                        {"startup_s", run.startup_ms * 1e-3},
                        {"steps", run.steps}});
    for (const RuleResult& rule : record.rules) {
        if (rule.rule != "class") continue;
        verdict["met"] = rule.met;
        verdict["why"] = rule.why;
    }
    return {{"exit_code", code},
            {"loss", all_done ? Json(loss.mean) : Json(nullptr)},
            {"train_s", all_done ? Json(time.mean * 1e-3) : Json(nullptr)},
            {"wall_s", process_age_ms() * 1e-3},
            {"tokens", config.tokens_before(config.schedule.total_steps())},
            {"parameters", parameters_of(config.model, config.longest_sequence()).whole_numel()},
            {"track", record.track},
            {"class", verdict},
            {"problems", trial.problems},
            {"runs", runs},
            {"hardware", record.hardware_class.text()},
            {"git_sha", record.git_sha + (record.dirty ? "-dirty" : "")},
            {"folder", trial.folder}};
}

int code_of(const Trial& trial) {
    const Record& record = trial.record;
    if (record.statistics.candidate.failed > 0) return static_cast<int>(ExitCode::diverged);
    if (!trial.problems.empty()) return static_cast<int>(ExitCode::data);
    for (const RuleResult& rule : record.rules) {
        if (rule.rule == "class" && !rule.met) return static_cast<int>(ExitCode::usage);
    }
    return 0;
}

void print_json(const Json& json) {
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

HardwareClass hardware_of_run(const Config& config, World& world) {
    RuntimeOptions options = runtime_options(config, resolve_ranks(config, world));
    options.dry = true;
    Environment environment = read_environment();
    environment.ranks.push_back({environment.host, Runtime(options).description()});
    return hardware_class_of(hardware_of(environment_to_json(environment)));
}

int make_trial_runs(World& world, const Attempt& attempt, AttemptFolder& folder, bool keep_weights) {
    bool first = true;
    for (const AttemptRun& run : folder.remaining()) {
        TrainOptions options;
        options.name = run.name();
        options.out = folder.path();
        options.seed = run.seed;
        options.quiet = true;
        options.print_result = false;
        options.began_ms = first ? 0 : process_age_ms();
        first = false;
        int code = 0;
        try {
            code = train_on(world, options, [&] { return attempt.candidate.config; });
        } catch (const JointError& error) {
            if (error.code() != ExitCode::diverged) throw;
        }
        if (!keep_weights) fs::remove_all(fs::path(folder.path()) / run.name() / "checkpoints");
        if (code != 0) return code;
    }
    return 0;
}

int trial_on(World& world, const RecordTrialOptions& options) {
    if (world.size() > 1) throw_usage("a trial runs on one rank; here are {}", world.size());
    RecordAttemptOptions requested;
    requested.config = options.config;
    requested.settings = options.settings;
    requested.track_class = options.track_class;
    requested.seeds = hidden_seeds(options.seeds);
    requested.out = options.tracks;
    Attempt attempt = read_attempt(requested, true);
    attempt.candidate.name += fmt::format("-{:08x}", hidden_seeds(1).front());
    check_trainable(world, attempt.candidate.config);
    expect_of_class(attempt, attempt.candidate, hardware_of_run(attempt.candidate.config, world));
    AttemptFolder folder(options.out, terms_of(attempt, world));
    const int stopped = make_trial_runs(world, attempt, folder, options.keep_weights);
    if (stopped != 0) {
        print_json(
            {{"exit_code", stopped},
             {"error", stopped > 128 ? "stopped by a signal" : "a file of the run could not be written"},
             {"folder", folder.path()}});
        return stopped;
    }
    const Trial trial = judge(attempt, folder, options);
    const int code = code_of(trial);
    print_json(trial_json(trial, attempt.candidate.config, code));
    for (const std::string& problem : trial.problems) std::fprintf(stderr, "error: %s\n", problem.c_str());
    return code;
}

}  // namespace

CLI::App* add_record_trial(CLI::App& records, RecordTrialOptions& options) {
    CLI::App* command = records.add_subcommand(
        "trial", "train a config with hidden seeds and answer in JSON, for a program that searches");
    command->add_option("config", options.config, "JSON config; record.track names the track")->required();
    command
        ->add_option("--set", options.settings,
                     "override one key of the config: dotted.key=value; repeatable")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    command->add_option("--class", options.track_class, "class of the track; default: its first");
    command->add_option("--seeds", options.seeds, "how many runs, each with a seed that is drawn")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
    command->add_option("--tracks", options.tracks, "folder of tracks")->capture_default_str();
    command->add_option("--out", options.out, "folder of trials; each makes one in it")
        ->capture_default_str();
    command->add_flag("--keep-weights", options.keep_weights, "leave the checkpoints in the run folders");
    command->footer(kTrialFooter);
    return command;
}

int run_record_trial(const RecordTrialOptions& options) {
    const auto world = make_training_world({}, true);
    try {
        return trial_on(*world, options);
    } catch (const Error& error) {
        print_json({{"exit_code", static_cast<int>(error.code())}, {"error", error.what()}});
        throw;
    }
}

}  // namespace speedrun
