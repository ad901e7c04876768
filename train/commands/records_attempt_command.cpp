#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "data/durable_file.h"
#include "kernels/device/error.h"
#include "train/comm/joint_check.h"
#include "train/comm/world.h"
#include "train/commands/attempt_config.h"
#include "train/commands/commands.h"
#include "train/commands/effect_runs.h"
#include "train/commands/machine_watch.h"
#include "train/commands/program_run.h"
#include "train/commands/train_run.h"
#include "train/engine/memory_plan.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"
#include "train/runlog/environment.h"
#include "train/runlog/progress.h"
#include "train/runlog/train_clock.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Distributes the first rank's list of runs to all ranks.
std::vector<AttemptRun> share_runs(World& world, const std::vector<AttemptRun>& runs) {
    std::string text;
    for (const AttemptRun& run : runs) text += fmt::format("{} {} {}\n", run.order, run.side, run.seed);
    std::istringstream lines(world.all_gather(text).front());
    std::vector<AttemptRun> all;
    for (AttemptRun run; lines >> run.order >> run.side >> run.seed;) all.push_back(run);
    return all;
}

double time_left_ms(const AttemptFolder& folder, const std::vector<AttemptRun>& runs, size_t next) {
    const double ours = folder.mean_run_ms(kCandidate), theirs = folder.mean_run_ms(kBaseline);
    double sum = 0;
    for (size_t i = next; i < runs.size(); ++i) {
        const double own = runs[i].side == kCandidate ? ours : theirs;
        sum += own > 0 ? own : std::max(ours, theirs);  // no run of this side yet
    }
    return sum;
}

void say_finished(const AttemptFolder& folder, const std::vector<AttemptRun>& runs, size_t index) {
    const AttemptFolder::Outcome outcome = folder.outcome(runs[index]);
    std::printf("  %s  loss %s  training time %.2f s", outcome.status.c_str(),
                outcome.loss ? fmt::format("{:.4f}", *outcome.loss).c_str() : "-", outcome.train_ms * 1e-3);
    if (index + 1 < runs.size())
        std::printf("  about %s left", clock_text(time_left_ms(folder, runs, index + 1) * 1e-3).c_str());
    if (!outcome.marked.empty()) std::printf("\n  marked: %s", outcome.marked.c_str());
    std::printf("\n");
    std::fflush(stdout);
}

// Runs a side's build, each run in its own process.
int train_by_builds(const Attempt& attempt, const RecordAttemptOptions& requested, const AttemptRun& run,
                    TrainOptions options) {
    options.config = options.out + "/config.json";
    options.settings = requested.settings;
    write_file(options.config, attempt.candidate.source);
    const std::string own = fs::read_symlink("/proc/self/exe").string();
    const int code = train_with(run.side == kCandidate ? own : attempt.baseline_binary, options);
    if (code != static_cast<int>(ExitCode::diverged)) return code;
    std::printf("  the run is kept, and counts as failed\n");
    return 0;
}

// Makes the runs one after the other. Returns 0, or the exit code that interrupts the attempt.
int make_runs(World& world, const Attempt& attempt, const RecordAttemptOptions& requested,
              AttemptFolder* folder, const std::string& path, const std::vector<AttemptRun>& runs,
              bool terminal) {
    const std::string gpu = gpu_of_rank(world, attempt.candidate.config);
    const std::string gpu_of_baseline = attempt.baseline ? gpu_of_rank(world, attempt.baseline->config) : "";
    MachineWatch watch(world);
    for (size_t i = 0; i < runs.size(); ++i) {
        const AttemptRun& run = runs[i];
        if (folder) {
            std::printf("run %lld of %lld: %s (%s), seed %lld\n", static_cast<long long>(run.order) + 1,
                        static_cast<long long>(attempt.seeds.size() * (attempt.baseline ? 2 : 1)),
                        run.side.c_str(),
                        (run.side == kCandidate ? attempt.candidate : *attempt.baseline).name.c_str(),
                        static_cast<long long>(run.seed));
            std::fflush(stdout);
        }
        watch.begin(run.side == kCandidate ? gpu : gpu_of_baseline);
        TrainOptions options;
        options.name = run.name();
        options.out = path;
        options.seed = run.seed;
        options.quiet = !terminal;
        options.print_result = false;
        options.began_ms = i == 0 ? 0 : process_age_ms();
        reset_peak_rss();
        int code = 0;
        if (!attempt.baseline_binary.empty()) {
            code = train_by_builds(attempt, requested, run, options);
            folder->keep_machine(run, watch.end());
            if (code != 0) return code;
            say_finished(*folder, runs, i);
            continue;
        }
        try {
            code = train_on(world, options, [&] { return attempt.config_of(run.side); });
        } catch (const JointError& error) {
            if (error.code() != ExitCode::diverged) throw;
            if (folder) std::printf("  %s; the run is kept, and counts as failed\n", error.what());
        }
        const MachineState state = watch.end();
        check_together(world, [&] {
            if (folder) folder->keep_machine(run, state);
        });
        if (code != 0) return code;
        if (folder) say_finished(*folder, runs, i);
    }
    return 0;
}

void print_verdict(const Record& record, const std::string& folder) {
    const RecordStatistics& s = record.statistics;
    std::printf("%s: %s s, loss %s", record.name.c_str(), seconds_text(s.candidate.train_ms).c_str(),
                loss_text(s.candidate.loss).c_str());
    if (record.by_loss && s.speedup)
        std::printf(", %s", gain_text(record).c_str());
    else if (s.speedup)
        std::printf(", %.3f times as fast as %s", *s.speedup, record.baseline->name.c_str());
    std::printf("\n");
    for (const RuleResult& rule : record.rules)
        std::printf("  %-5s %-8s %s\n", rule.rule.c_str(), rule.met ? "met" : "NOT MET", rule.why.c_str());
    std::printf("%s: %s\n",
                record.is_record ? "a record by the track's rules" : "no record by the track's rules",
                folder.c_str());
}

void write_results(const AttemptFolder& folder, const Attempt& attempt, const RecordAttemptOptions& options) {
    AttemptFolder::Result result = folder.result();
    result.record.what = options.what;
    result.record.data = attempt.data;
    result.record.target_loss = attempt.track_class.target_loss.value_or(0);
    result.record.record_before =
        leading_record((fs::path(options.out) / attempt.track.name).string(),
                       board_of(attempt.track_class, hardware_class_of(result.record.hardware)));
    if (!options.baseline_name.empty()) {
        AttemptFolder::Result baseline = record_of_baseline(result, options.baseline_name);
        baseline.record.what = options.baseline_what;
        count_parameters(baseline.record, attempt.track, baseline.record.name);
        evaluate(baseline.record, attempt.track);
        print_verdict(baseline.record, write_record(options.out, baseline));
        result.record.baseline->record = baseline.record.folder_name();
        if (baseline.record.is_record) result.record.record_before = baseline.record.folder_name();
    }
    count_parameters(result.record, attempt.track, result.record.name);
    evaluate(result.record, attempt.track);
    print_verdict(result.record, write_record(options.out, result));
}

// Returns the hardware class of runs of this config on these ranks.
HardwareClass hardware_of_runs(World& world, const Config& config) {
    RuntimeOptions options = runtime_options(config, resolve_ranks(config, world));
    options.dry = true;
    Environment environment = read_environment();
    for (const std::string& text :
         world.all_gather(RankLocation{environment.host, Runtime(options).description()}.to_text()))
        environment.ranks.push_back(RankLocation::from_text(text));
    return hardware_class_of(hardware_of(environment_to_json(environment)));
}

// Warns before hours are spent on runs.
void warn_of_leader(const Attempt& attempt, const RecordAttemptOptions& options,
                    const HardwareClass& hardware) {
    const std::string& name = attempt.track_class.name;
    const std::string leader = leading_record((fs::path(options.out) / attempt.track.name).string(),
                                              board_of(attempt.track_class, hardware));
    if (leader.empty() || (attempt.baseline && attempt.baseline->record == leader)) return;
    std::fprintf(
        stderr,
        "warning: the leading record of class %s on %s is %s; this can be none unless --against names it\n",
        name.c_str(), hardware.text().c_str(), leader.c_str());
}

int attempt_on(World& world, const RecordAttemptOptions& options, bool terminal) {
    const bool first = world.rank() == 0;
    Attempt attempt;
    check_together(world, [&] {
        attempt = read_attempt(options, first);
        if (!attempt.baseline_binary.empty() && world.size() > 1)
            throw_usage("--baseline-binary: each run is a process of its own and one rank; here are {} ranks",
                        world.size());
    });
    check_trainable(world, attempt.candidate.config);
    if (attempt.baseline) check_trainable(world, attempt.baseline->config);
    const HardwareClass hardware = hardware_of_runs(world, attempt.candidate.config);
    check_together(world, [&] {
        expect_of_class(attempt, attempt.candidate, hardware);
        if (!options.baseline_name.empty()) expect_of_class(attempt, *attempt.baseline, hardware);
    });
    std::optional<AttemptFolder> folder;
    std::vector<AttemptRun> runs;
    check_together(world, [&] {
        if (!first) return;
        folder.emplace(options.work, terms_of(attempt, world));
        for (const std::string& name : {attempt.candidate.name, options.baseline_name}) {
            if (!name.empty()) expect_no_record(options.out, attempt.track.name, folder->date() + "_" + name);
        }
        warn_of_leader(attempt, options, hardware);
        std::printf("%s", plan_of_runs(options, static_cast<int64_t>(attempt.seeds.size())).c_str());
        std::fflush(stdout);
        runs = folder->remaining();
    });
    const std::string path = world.all_gather(folder ? folder->path() : "").front();
    runs = share_runs(world, runs);
    const int code = make_runs(world, attempt, options, folder ? &*folder : nullptr, path, runs, terminal);
    if (code != 0) {
        if (first)
            std::fprintf(
                stderr,
                "the attempt is unfinished: the same command continues it; finished runs stay in %s\n",
                path.c_str());
        return code;
    }
    check_together(world, [&] {
        if (first) write_results(*folder, attempt, options);
    });
    return 0;
}

// Returns the config's timeout for lost peers, which is needed before the world that reports errors in the config exists.
double timeout_of(const RecordAttemptOptions& options) {
    try {
        return read_attempt_side(options.config, options.settings, options.out).config.parallel.timeout_s;
    } catch (const Error&) {
        return WorldOptions{}.timeout_s;
    }
}

}  // namespace

int run_record_attempt(const RecordAttemptOptions& options) {
    const auto world = make_training_world({.timeout_s = timeout_of(options)}, options.alone);
    const bool terminal = world->size() == 1 && isatty(STDOUT_FILENO) == 1;
    return run_rank(*world, [&] { return attempt_on(*world, options, terminal); });
}

}  // namespace speedrun
