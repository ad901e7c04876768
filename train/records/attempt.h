// An attempt at a record in progress: WORK/<name>/ with attempt.json (the terms) and one run folder per run. It can be
// interrupted and continued; finished runs are kept. One process at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/folder_lock.h"
#include "train/records/record.h"

namespace speedrun {

// Properties that must not change between the attempt's first run and its last.
struct AttemptTerms {
    std::string name, track, race;  // race: the class
    bool systems_only = false;
    std::vector<int64_t> seeds;
    std::string git_sha, binary_sha256, machine;
    std::string config;  // resolved, JSON
    std::optional<BaselineOfRecord> baseline;
    std::string baseline_binary_sha256;  // another build that makes the baseline's runs; empty: this build
};

struct AttemptRun {
    int64_t order = 0;
    std::string side;
    int64_t seed = 0;
    std::string name() const;  // name of its run folder
};

// Returns the runs, alternating in order within each round, so that a gradual slowdown affects both sides equally: candidate 1,
// baseline 1, baseline 2, candidate 2, candidate 3, ...
std::vector<AttemptRun> runs_of(const AttemptTerms& terms);

class AttemptFolder {
  public:
    // Creates work/<name>/, or continues it. Usage errors: the attempt in it has other terms (the message has the differences,
    // with both values), or another process uses it (the message names it).
    AttemptFolder(const std::string& work, const AttemptTerms& terms);

    const std::string& path() const { return path_; }
    const std::string& date() const { return date_; }  // start of the attempt, YYYY-MM-DD, UTC
    // Returns the unfinished runs. Renames their folders to <run>.interrupted-<N>; usage error if a process writes one.
    std::vector<AttemptRun> remaining();
    struct Outcome {
        std::string status;
        std::optional<double> loss;  // finished runs only
        double startup_ms = 0, train_ms = 0;
        std::string marked;  // MachineState::problem()
    };
    Outcome outcome(const AttemptRun& run) const;  // the run must be finished
    // Writes machine.json into the run's folder if it exists.
    void keep_machine(const AttemptRun& run, const MachineState& state);
    // Returns the mean start-up plus training time of this side's finished runs, in milliseconds; 0: none.
    double mean_run_ms(const std::string& side) const;

    // The finished attempt as a record, not evaluated, and the contents of its metrics files.
    struct Result {
        Record record;
        std::vector<std::pair<std::string, std::string>> files;  // name, bytes
    };
    Result result() const;

  private:
    bool is_finished(const AttemptRun& run) const;
    std::vector<InterruptedRun> interrupted() const;

    const AttemptTerms terms_;
    std::string path_, date_;
    std::unique_ptr<FolderLock> lock_;
};

// Returns the baseline's runs of a result as a separate record with that name.
AttemptFolder::Result record_of_baseline(const AttemptFolder::Result& result, const std::string& name);

// Writes out/<track>/<date>_<name>/ atomically; the record must be evaluated. Returns the folder. Usage error if it exists.
std::string write_record(const std::string& out, const AttemptFolder::Result& result);
// Throws the same usage error, before any runs.
void expect_no_record(const std::string& out, const std::string& track, const std::string& folder_name);

}  // namespace speedrun
