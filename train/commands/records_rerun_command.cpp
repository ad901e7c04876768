#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <thread>

#include "data/dataset.h"
#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/comm/world.h"
#include "train/commands/commands.h"
#include "train/commands/commit_build.h"
#include "train/commands/machine_watch.h"
#include "train/commands/program_run.h"
#include "train/records/attempt.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"
#include "train/records/record_verify.h"
#include "train/records/recorded_config.h"
#include "train/records/replication.h"
#include "train/runlog/build_info.h"
#include "train/runlog/environment.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using RerunJson = nlohmann::ordered_json;

// A build that made runs of a record, and its current file.
struct RecordedProgram {
    std::string git_sha;  // ends in "-dirty" if there were changes
    std::string binary_sha256, path;

    bool is_file(const std::string& file) const { return sha256_file(file) == binary_sha256; }
};

bool has_cuda(const std::string& build) {
    return parse_json<RerunJson>(build).value("cuda", false);
}

void find_program(RecordedProgram& program, const std::string& given, const std::string& option, bool cuda) {
    const std::string own = fs::read_symlink("/proc/self/exe").string();
    if (!given.empty()) {
        if (access(given.c_str(), X_OK) != 0) throw_usage("{} {}: no program that can be run", option, given);
        program.path = fs::absolute(given).string();
    } else if (program.is_file(own) || program.git_sha == build_info().git_sha) {
        program.path = own;
    } else if (program.git_sha.ends_with("-dirty") || program.git_sha == "unknown") {
        throw_usage("the record's program was built from {}, no commit: give it with {}", program.git_sha,
                    option);
    } else {
        program.path = build_commit(program.git_sha, cuda);
    }
    std::printf("program of %s: %s\n", program.git_sha.c_str(), program.path.c_str());
}

// A program of another commit would be no evidence about the record.
void expect_commit(const RecordedProgram& program, const fs::path& run_folder) {
    if (program.is_file(program.path)) return;
    const std::string path = (run_folder / "environment.json").string();
    const std::string sha = parse_json<RerunJson>(read_text_file(path)).value("git_sha", "");
    if (sha != program.git_sha)
        throw_usage("{} was built from {}, the record's program from {}: another --binary is needed",
                    program.path, sha, program.git_sha);
}

std::vector<ShardInfo> data_of(const Record& record, const Track& track, const std::string& config) {
    const Config read = recorded_config(config, record.folder_name() + ": config");
    const TrackClass* const found = track.find_class(track.class_of_record(record.race));
    TrackClass own = found ? *found : track.classes.front();
    if (!own.by_loss() && own.had_target(record.target_loss, record.date))
        own.target_loss = record.target_loss;  // also if it has been replaced since
    return expect_data_of_track(track, own,
                                {expand_globs(read.data.train), expand_globs(read.data.val),
                                 read.data.val_tokens, read.record.target_loss});
}

// Prints the load of this machine before the first run.
void say_load(const Record& record) {
    const MachineCounters begin = read_machine_counters(cores_in_list(allowed_cores()));
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const MachineCounters end = read_machine_counters(cores_in_list(allowed_cores()));
    const MachineState state = state_between(begin, end, end.own_s - begin.own_s);
    std::printf("record: %s; this machine: %lld cores, other programs take %.0f%% of them now\n",
                record.hardware_class.text().c_str(), static_cast<long long>(state.cores),
                state.others * 100);
    if (const std::string problem = state.problem(); !problem.empty())
        std::fprintf(stderr, "warning: %s; times of runs on such a machine are not judged\n",
                     problem.c_str());
    std::fflush(stdout);
}

AttemptTerms terms_of_rerun(const Record& record, int64_t runs, const RecordedProgram& ours,
                            const RecordedProgram& theirs) {
    AttemptTerms terms;
    terms.name = record.folder_name();
    terms.track = record.track;
    terms.race = record.race;
    terms.systems_only = record.systems_only;
    int64_t last = 0;
    for (const RecordRun& run : record.runs) last = std::max(last, run.seed);
    terms.seeds.resize(static_cast<size_t>(runs));
    std::iota(terms.seeds.begin(), terms.seeds.end(), last + 1);
    terms.git_sha = ours.git_sha;
    terms.binary_sha256 = sha256_file(ours.path);
    const Environment e = read_environment();
    terms.machine = fmt::format("{}, {}, {} cores", e.host, e.cpu, e.cores);
    terms.config = record.config;
    terms.baseline = record.baseline;
    if (terms.baseline) terms.baseline->program.reset();
    if (!theirs.path.empty()) terms.baseline_binary_sha256 = sha256_file(theirs.path);
    return terms;
}

int make_rerun(World& world, AttemptFolder& folder, const AttemptTerms& terms, const RecordedProgram& ours,
               const RecordedProgram& theirs) {
    const fs::path path = folder.path();
    write_file((path / "candidate.json").string(), terms.config);
    if (terms.baseline) write_file((path / "baseline.json").string(), terms.baseline->config);
    const auto gpu_of = [&](const std::string& config) {
        return gpu_of_rank(world, recorded_config(config, terms.name + ": config"));
    };
    const std::string gpu = gpu_of(terms.config);
    const std::string gpu_of_baseline = terms.baseline ? gpu_of(terms.baseline->config) : "";
    MachineWatch watch(world);
    const std::vector<AttemptRun> runs = folder.remaining();
    for (const AttemptRun& run : runs) {
        std::printf("run %lld of %zu: %s, seed %lld\n", static_cast<long long>(run.order) + 1,
                    terms.seeds.size() * (terms.baseline ? 2 : 1), run.side.c_str(),
                    static_cast<long long>(run.seed));
        std::fflush(stdout);
        const RecordedProgram& program = run.side == kBaseline && !theirs.path.empty() ? theirs : ours;
        TrainOptions options;
        options.config = (path / (run.side + ".json")).string();
        options.name = run.name();
        options.out = path.string();
        options.seed = run.seed;
        watch.begin(run.side == kCandidate ? gpu : gpu_of_baseline);
        const int code = train_with(program.path, options);
        folder.keep_machine(run, watch.end());
        if (code != 0 && code != static_cast<int>(ExitCode::diverged)) {
            std::fprintf(stderr,
                         "the rerun is unfinished: the same command continues it; finished runs stay in %s\n",
                         path.c_str());
            return code;
        }
        expect_commit(program, path / run.name());
        const AttemptFolder::Outcome made = folder.outcome(run);
        std::printf("  %s  loss %s  training time %.2f s%s%s\n", made.status.c_str(),
                    made.loss ? fmt::format("{:.4f}", *made.loss).c_str() : "-", made.train_ms * 1e-3,
                    made.marked.empty() ? "" : "  marked: ", made.marked.c_str());
    }
    return 0;
}

int rerun_on(World& world, const RecordRerunOptions& options) {
    const Record record = read_record(options.record);
    const fs::path record_folder = fs::weakly_canonical(options.record);
    const Track track = read_track(record_folder.parent_path().string());
    const size_t ranks = parse_json<RerunJson>(record.hardware).value("ranks", RerunJson::array()).size();
    if (ranks > 1) throw_usage("{}: made by {} ranks; rerun repeats runs of one rank", options.record, ranks);
    for (const std::string& problem : verify_record(options.record).problems)
        std::fprintf(stderr, "warning: verify: %s\n", problem.c_str());
    const bool two_builds = record.baseline && record.baseline->program;
    if (!two_builds && !options.baseline_binary.empty())
        throw_usage("--baseline-binary: one build made all runs of {}", options.record);
    const std::vector<ShardInfo> data = data_of(record, track, record.config);
    if (record.baseline) data_of(record, track, record.baseline->config);
    RecordedProgram ours{record.git_sha + (record.dirty ? "-dirty" : ""), record.binary_sha256, ""}, theirs;
    find_program(ours, options.binary, "--binary", has_cuda(record.build));
    if (two_builds) {
        const ProgramOfRecord& other = *record.baseline->program;
        theirs = {other.git_sha + (other.dirty ? "-dirty" : ""), other.binary_sha256, ""};
        find_program(theirs, options.baseline_binary, "--baseline-binary", has_cuda(other.build));
    }
    say_load(record);
    const int64_t as_recorded = record.statistics.candidate.loss.count + record.statistics.candidate.failed;
    const AttemptTerms terms =
        terms_of_rerun(record, options.runs > 0 ? options.runs : as_recorded, ours, theirs);
    AttemptFolder folder(options.work, terms);
    if (const int code = make_rerun(world, folder, terms, ours, theirs); code != 0) return code;
    Replication replication;
    replication.replicates = record.folder_name();
    replication.attempt = folder.result().record;
    Record& attempt = replication.attempt;
    attempt.name = record.name;
    attempt.data = data;
    attempt.target_loss = track.target_loss;
    attempt.record_before = record.record_before;
    attempt.parameters = record.parameters;
    evaluate(attempt, track);
    judge(replication, record, track);
    const std::string out = options.out.empty() ? (record_folder / "replications").string() : options.out;
    const std::string file = write_replication(out, replication);
    std::printf("%s: %s\n", record.folder_name().c_str(), replication.verdict.c_str());
    for (const std::string& reason : replication.reasons) std::printf("  %s\n", reason.c_str());
    std::printf("  training %s s, loss %s\n%s\n", seconds_text(attempt.statistics.candidate.train_ms).c_str(),
                loss_text(attempt.statistics.candidate.loss).c_str(), file.c_str());
    return replication.verdict == kNotReplicated ? static_cast<int>(ExitCode::data) : 0;
}

}  // namespace

int run_record_rerun(const RecordRerunOptions& options) {
    const auto world = make_training_world({}, true);
    return run_rank(*world, [&] { return rerun_on(*world, options); });
}

}  // namespace speedrun
