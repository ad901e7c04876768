// An attempt at a record while it is made: WORK/<name>/ with attempt.json (what is measured, with what) and
// one run folder per run. It can be left and taken up again; runs that are finished stay. One process at a time.
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

// What must be the same from the attempt's first run to its last.
struct AttemptTerms {
    std::string name, track, race;  // race: the class
    bool systems_only = false;
    std::vector<int64_t> seeds;
    std::string git_sha, binary_sha256, machine;
    std::string config;  // resolved, JSON
    std::optional<BaselineOfRecord> baseline;
    std::string
        baseline_binary_sha256;  // of another build, which makes the baseline's runs; empty: this one does
};

struct AttemptRun {
    int64_t order = 0;
    std::string side;
    int64_t seed = 0;
    std::string name() const;  // of its run folder
};

// In turns, and in each round the other side first, so that a machine that slows down slows down both:
// candidate 1, baseline 1, baseline 2, candidate 2, candidate 3, ...
std::vector<AttemptRun> runs_of(const AttemptTerms& terms);

class AttemptFolder {
  public:
    // Makes work/<name>/, or takes it up again. Usage error that names what differs, with both values, if the
    // attempt in it was begun on other terms, or names the process that makes it now.
    AttemptFolder(const std::string& work, const AttemptTerms& terms);

    const std::string& path() const { return path_; }
    const std::string& date() const { return date_; }  // YYYY-MM-DD, UTC, of its beginning
    // The runs that are not finished. Folders of such runs are renamed to <run>.interrupted-<N>; usage error if a process
    // writes one.
    std::vector<AttemptRun> remaining();
    struct Outcome {
        std::string status;
        std::optional<double> loss;  // of a run that is done
        double startup_ms = 0, train_ms = 0;
        std::string marked;  // MachineState::problem()
    };
    Outcome outcome(const AttemptRun& run) const;  // of a finished run
    // Writes machine.json into the run's folder, if that is there.
    void keep_machine(const AttemptRun& run, const MachineState& state);
    // Start-up and training of the finished runs of this side: mean in milliseconds; 0: none.
    double mean_run_ms(const std::string& side) const;

    // The finished attempt as a record, not evaluated, and what its metrics files contain.
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

// The baseline's runs of a result as a record of their own, under that name.
AttemptFolder::Result record_of_baseline(const AttemptFolder::Result& result, const std::string& name);

// Writes out/<track>/<date>_<name>/, whole or not at all; the record is evaluated. Returns the folder. Usage
// error if it is there.
std::string write_record(const std::string& out, const AttemptFolder::Result& result);
// The usage error of write_record, before there are any runs.
void expect_no_record(const std::string& out, const std::string& track, const std::string& folder_name);

}  // namespace speedrun
