// A record as its folder records/<track>/<date>_<name>/ holds it: record.json, one compressed metrics file
// per run, README.md. What can be computed from the runs (statistics, verdict, changed keys) is computed by
// evaluate() and written beside them, never read back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config_keys.h"
#include "train/records/run_metrics.h"
#include "train/records/statistics.h"
#include "train/records/track.h"
#include "train/runlog/machine_state.h"

namespace speedrun {

inline constexpr int kRecordSchema = 1;
inline constexpr const char* kCandidate = "candidate";
inline constexpr const char* kBaseline = "baseline";

struct RecordRun {
    std::string side;   // kCandidate or kBaseline
    int64_t order = 0;  // 0 ...: in which the attempt's runs were made
    int64_t seed = 0;
    std::string status;  // "done" or "diverged"
    std::string began_utc;
    double startup_ms = 0;
    std::optional<double> wall_s = {};         // RunSummary::wall_s; none: an older build's
    std::optional<MachineState> machine = {};  // while the run was made; none: an older attempt's
    std::string file, sha256;                  // name and hash of its compressed metrics, in the folder
    int64_t every = 1;                         // interval of the kept lines of steps; 1: all are kept
    // From its metrics.
    int64_t steps = 0;
    double train_ms = 0;
    std::vector<Validation> validations;

    bool done() const { return status == "done"; }
    double loss() const { return validations.back().loss; }  // of a run that is done
};

// A run that was ended before its end, and started afresh: listed, and no part of the statistics.
struct InterruptedRun {
    std::string side;
    int64_t seed = 0, steps = 0;
};

struct SideStatistics {
    int64_t failed = 0;      // runs that diverged
    Moments loss, train_ms;  // of those that are done
    Moments wall_s;          // moments of the runs that have it
};

struct RecordStatistics {
    SideStatistics candidate;
    std::optional<SideStatistics> baseline;
    std::optional<TestResult> loss_test;  // the mean loss is below the target
    std::optional<TestResult> time_test;  // the mean time is below the baseline's
    std::optional<TestResult> gain_test;  // class by loss: the mean loss is below the baseline's
    std::optional<TestResult>
        margin_test;                // systems-only: losses are the baseline's, at the worst validation
    std::optional<double> speedup;  // baseline's mean time / candidate's
};

struct RuleResult {
    std::string rule;
    bool met = false;
    std::string why;
};

// A build that is not the record's own.
struct ProgramOfRecord {
    std::string git_sha;  // without "-dirty"
    bool dirty = false;
    std::string binary_sha256, build;  // build: as Record's
};

struct BaselineOfRecord {
    std::string name;                             // of the config
    std::string record;                           // folder in the same track whose config it is; empty: none
    std::string config;                           // resolved, JSON
    std::optional<ProgramOfRecord> program = {};  // that made its runs; none: the record's own
};

struct Record {
    std::string name, track, date;  // date: YYYY-MM-DD, UTC, when the attempt began
    std::string what;               // changed, and why it is faster
    bool systems_only = false;
    std::string race;           // the class that it was made for; empty: made before tracks had classes
    std::string record_before;  // folder of the race's leading record when the attempt ended; empty: none
    double target_loss = 0;     // 0: of a class by loss
    std::string git_sha;        // without "-dirty"
    bool dirty = false;
    std::string binary_sha256;
    std::string hardware, build;  // JSON objects, of environment.json
    std::vector<ShardInfo> data;
    std::string config;  // resolved, JSON; its seed is not that of the runs
    std::optional<BaselineOfRecord> baseline;
    std::vector<RecordRun> runs;  // in order
    std::vector<InterruptedRun> interrupted;

    // Filled by count_parameters(), if a class of the track has rules about them.
    std::optional<int64_t> parameters, tokens;  // tokens: of a run's training
    std::optional<std::string> not_dense;       // dense_problem() of the model

    // Number of replications for each verdict, by read_record().
    std::map<std::string, int64_t> replications;

    // By evaluate().
    HardwareClass hardware_class;
    bool by_loss = false;                // so was the class that it was made for (TrackClass::by_loss)
    std::vector<std::string> classes;    // of the track, whose rules it meets, in the track's order
    std::vector<KeyDifference> changes;  // baseline's config -> this one, seed left out
    RecordStatistics statistics;
    std::vector<RuleResult> rules;
    bool is_record = false;  // all rules are met

    bool is_of(const std::string& track_class) const;
    std::string folder_name() const { return date + "_" + name; }
    std::vector<const RecordRun*> done_runs(const std::string& side) const;
};

// Fills what follows from the runs, and from parameters that are counted.
void evaluate(Record& record, const Track& track);

// Rule "machine": at most one run in ten (of fewer than 20: one) was marked. None for a record without these states.
std::optional<RuleResult> machine_rule(const Record& record);

// Its last key, sha256, is of all the others: a figure that nothing can recompute cannot change unnoticed.
std::string record_to_json(const Record& record);
// Not evaluated. Throws a data error that names origin and what is missing or of another type.
Record record_from_json(const std::string& text, const std::string& origin);
// Whether the text, which record_from_json takes, is byte by byte what was written.
bool has_its_hash(const std::string& text);

}  // namespace speedrun
