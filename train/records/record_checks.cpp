#include "train/records/record_checks.h"

#include <fmt/core.h>

#include <ctime>
#include <filesystem>
#include <map>

#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/records/batch_checks.h"
#include "train/records/commit_times.h"
#include "train/records/gzip.h"
#include "train/records/input_checks.h"
#include "train/records/record_folder.h"
#include "train/records/recorded_config.h"
#include "train/records/run_checks.h"
#include "train/records/run_metrics.h"
#include "train/records/timeline_checks.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<RunLine>;

class RecordChecks {
  public:
    RecordChecks(const std::string& folder, const Record& record, const Track& track,
                 const std::vector<Lines>& lines)
        : folder_(folder), record_(record), track_(track), lines_(lines) {}

    std::vector<std::string> problems() {
        read_config(kCandidate, "config", record_.config);
        if (record_.baseline) read_config(kBaseline, "baseline.config", record_.baseline->config);
        add_all(shard_problems(record_, track_));
        add_all(program_problems(record_));
        check_commits();
        check_runs();
        check_last_losses();
        check_copies();
        check_predecessor();
        check_other_records();
        return problems_;
    }

  private:
    void add(const std::string& name, const std::string& problem) {
        if (!problem.empty()) problems_.push_back(name + ": " + problem);
    }
    void add_all(const std::vector<std::string>& problems) {
        for (const std::string& problem : problems) {
            if (!problem.empty()) problems_.push_back(problem);
        }
    }

    // The config must be readable: otherwise the runs could not be checked.
    void read_config(const std::string& side, const std::string& name, const std::string& text) {
        try {
            const Config config = configs_.emplace(side, recorded_config(text, name)).first->second;
            add_all(config_problems(name, config, record_, track_));
            if (side == kCandidate) add_all({threads_problem(config, record_)});
        } catch (const Error& error) {
            problems_.push_back(error.what());
        }
    }

    const Config* config_of(const RecordRun& run) const {
        const auto found = configs_.find(run.side);
        return found == configs_.end() ? nullptr : &found->second;
    }

    void check_commit(const std::string& key, const std::string& git_sha) {
        if (git_sha.empty() || git_sha.find_first_not_of("0123456789abcdef") != std::string::npos) return;
        // A copy of a record outside its repository is checked against the current repository.
        std::string repository = fs::path(folder_).parent_path().string();
        if (!has_history(repository, "track.json")) repository = ".";
        if (!has_history(repository,
                         repository == "." ? ":/records/" + track_.name + "/track.json" : "track.json"))
            return;
        const auto made = commit_time(repository, git_sha);
        if (!made)
            return problems_.push_back(fmt::format("{}: {} is no commit of this repository", key, git_sha));
        const auto began =
            record_.runs.empty() ? std::nullopt : seconds_of_utc(record_.runs.front().began_utc);
        constexpr int64_t kClocksDiffer = 600;
        if (began && *made > *began + kClocksDiffer)
            problems_.push_back(fmt::format("{}: {} was made {} s after the first run began, {}", key,
                                            git_sha, *made - *began, record_.runs.front().began_utc));
    }

    void check_commits() {
        check_commit("git_sha", record_.git_sha);
        if (record_.baseline && record_.baseline->program)
            check_commit("baseline.program.git_sha", record_.baseline->program->git_sha);
    }

    // Returns the first problem of a run: later ones may follow from it.
    static std::string run_problem(const RecordRun& run, const Lines& lines, const Config& config) {
        for (const std::string& problem :
             {lines_problem(lines, config, run.every, run.done()), values_problem(lines),
              times_problem(lines), schedule_problem(lines, config)}) {
            if (!problem.empty()) return problem;
        }
        return "";
    }

    void check_runs() {
        std::vector<double> validations_s;
        for (size_t i = 0; i < record_.runs.size(); ++i) {
            const RecordRun& run = record_.runs[i];
            const Config* config = config_of(run);
            validations_s.push_back(config ? longest_validations_s(run, *config, track_.validation_tokens)
                                           : 0);
            if (config && !lines_[i].empty()) add(run.file, run_problem(run, lines_[i], *config));
            // A record of an attempt's baseline has the original file names.
            const std::string end = fmt::format("-seed{}.jsonl.gz", run.seed);
            if (run.file != kCandidate + end && run.file != kBaseline + end)
                add(fmt::format("runs.{}.seed", i),
                    fmt::format("{}, its metrics are {}", run.seed, run.file));
            // A record of an attempt's baseline has half of the attempt's runs.
            const size_t num_runs = record_.runs.size() * (record_.baseline ? 1 : 2);
            const int64_t most = step_lines_kept({.steps = run.steps, .num_runs = num_runs});
            if (run.every > most)
                add(fmt::format("runs.{}.metrics.every", i),
                    fmt::format("{}, an attempt keeps the line of one step in {} here", run.every, most));
        }
        add_all(timeline_problems(record_, validations_s, std::time(nullptr)));
    }

    // Checks single runs, and all runs of a side, as the mean has less variance.
    void check_last_losses() {
        for (const auto& [side, config] : configs_) {
            std::vector<const Lines*> all;
            const size_t before = problems_.size();
            for (size_t i = 0; i < lines_.size(); ++i) {
                if (record_.runs[i].side != side || !record_.runs[i].done() || lines_[i].empty()) continue;
                all.push_back(&lines_[i]);
                add(record_.runs[i].file, last_losses_problem({&lines_[i]}, config));
            }
            if (problems_.size() == before) add("all runs of the " + side, last_losses_problem(all, config));
        }
    }

    void check_copies() {
        const std::string& other = record_.baseline ? record_.baseline->config : record_.config;
        const bool drawn_by_seed = draws_by_seed(record_.config) && draws_by_seed(other);
        const bool one_order = same_batches(record_.config, other);
        for (size_t i = 0; i < lines_.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                const RecordRun &a = record_.runs[i], &b = record_.runs[j];
                if (!a.done() || !b.done()) continue;
                const bool pair = a.side != b.side && a.seed == b.seed;
                std::string problem = copy_problem(lines_[i], lines_[j], pair);
                if (problem.empty() && (pair ? one_order : drawn_by_seed))
                    problem = batches_problem(lines_[i], lines_[j], pair);
                add(a.file + ", " + b.file, problem);
            }
        }
    }

    // The baseline repeats the previous record's runs: equal seeds have equal first steps.
    void check_predecessor() {
        if (!record_.baseline || record_.baseline->record.empty()) return;
        const fs::path there = fs::path(folder_).parent_path() / record_.baseline->record;
        if (!is_record_folder(there.string())) return;
        const std::string path = (there / "record.json").string();
        const Record before = record_from_json(read_text_file(path), path);
        std::vector<SeedRun> known;
        for (const RecordRun& run : before.runs) {
            const std::string file = (there / run.file).string();
            if (run.side == kCandidate && fs::exists(file))
                known.push_back({run.seed, read_run_lines(gunzip(read_text_file(file), file), file)});
        }
        for (size_t i = 0; i < lines_.size(); ++i) {
            const RecordRun& run = record_.runs[i];
            if (run.side == kBaseline)
                add(run.file, seed_problem({.seed = run.seed, .lines = lines_[i]}, known));
        }
        if (before.runs.empty() || record_.runs.empty()) return;
        const auto first = seconds_of_utc(before.runs.front().began_utc);
        const auto last = seconds_of_utc(record_.runs.back().began_utc);
        if (first && last && *first > *last)
            add("baseline.record", fmt::format("{} was begun at {}, after this record's last run",
                                               before.folder_name(), before.runs.front().began_utc));
    }

    static bool same_run(const RecordRun& a, const RecordRun& b) {
        return a.seed == b.seed && a.began_utc == b.began_utc && a.sha256 == b.sha256;
    }

    // An attempt's baseline may be a separate record. No other record may share a run with this one.
    void check_other_records() {
        for (const std::string& other : record_folders(fs::path(folder_).parent_path().string())) {
            if (fs::path(other).filename() == fs::path(folder_).filename()) continue;
            const std::string path = other + "/record.json";
            const Record record = record_from_json(read_text_file(path), path);
            for (const RecordRun& theirs : record.runs) {
                for (const RecordRun& ours : record_.runs) {
                    if (ours.train_ms == theirs.train_ms && ours.steps > 0 && !same_run(ours, theirs))
                        add(ours.file, fmt::format("trained for {} ms, to the digit as {} of {}",
                                                   ours.train_ms, theirs.file, other));
                }
            }
        }
    }

    const std::string& folder_;
    const Record& record_;
    const Track& track_;
    const std::vector<Lines>& lines_;
    std::map<std::string, Config> configs_;  // key: side
    std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> implausible(const std::string& folder, const Record& record, const Track& track,
                                     const std::vector<Lines>& lines) {
    return RecordChecks(folder, record, track, lines).problems();
}

}  // namespace speedrun
