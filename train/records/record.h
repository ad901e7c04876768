// A record, stored in the folder records/<track>/<date>_<name>/: record.json, one compressed metrics file per run, README.md.
// Values derived from the runs (statistics, verdict, changed keys) are computed by evaluate() and written too, but never read.
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
    int64_t order = 0;  // index in the attempt, from 0
    int64_t seed = 0;
    std::string status;  // "done" or "diverged"
    std::string began_utc;
    double startup_ms = 0;
    std::optional<double> wall_s = {};         // RunSummary::wall_s; none: older build
    std::optional<MachineState> machine = {};  // during the run; none: older attempt
    std::string file, sha256;                  // name and hash of its compressed metrics
    int64_t every = 1;                         // interval of the stored step lines; 1: all
    // Computed from its metrics.
    int64_t steps = 0;
    double train_ms = 0;
    std::vector<Validation> validations;

    bool done() const { return status == "done"; }
    double loss() const { return validations.back().loss; }  // finished runs only
};

// A run that was interrupted and restarted: listed, but not part of the statistics.
struct InterruptedRun {
    std::string side;
    int64_t seed = 0, steps = 0;
};

struct SideStatistics {
    int64_t failed = 0;      // diverged runs
    Moments loss, train_ms;  // finished runs
    Moments wall_s;          // runs with wall_s
};

struct RecordStatistics {
    SideStatistics candidate;
    std::optional<SideStatistics> baseline;
    std::optional<TestResult> loss_test;    // alternative: mean loss below the target
    std::optional<TestResult> time_test;    // alternative: mean time below the baseline's
    std::optional<TestResult> gain_test;    // class by loss; alternative: mean loss below the baseline's
    std::optional<TestResult> margin_test;  // systems-only: losses equal the baseline's; the worst validation
    std::optional<double> speedup;          // baseline's mean time / candidate's
};

struct RuleResult {
    std::string rule;
    bool met = false;
    std::string why;
};

// A build other than the record's own.
struct ProgramOfRecord {
    std::string git_sha;  // without "-dirty"
    bool dirty = false;
    std::string binary_sha256, build;  // build: as Record's
};

struct BaselineOfRecord {
    std::string name;    // name of the config
    std::string record;  // record of the track with this config, a folder; empty: none
    std::string config;  // resolved, JSON
    std::optional<ProgramOfRecord> program = {};  // build of its runs; none: the record's own
};

struct Record {
    std::string name, track, date;  // date: YYYY-MM-DD, UTC, start of the attempt
    std::string what;               // the change, and why it is faster
    bool systems_only = false;
    std::string race;           // class of the attempt; empty: from before tracks had classes
    std::string record_before;  // folder of the class's leading record at the end of the attempt; empty: none
    double target_loss = 0;     // 0: class by loss
    std::string git_sha;        // without "-dirty"
    bool dirty = false;
    std::string binary_sha256;
    std::string hardware, build;  // JSON objects from environment.json
    std::vector<ShardInfo> data;
    std::string config;  // resolved, JSON; runs have other seeds
    std::optional<BaselineOfRecord> baseline;
    std::vector<RecordRun> runs;  // in order of order
    std::vector<InterruptedRun> interrupted;

    // Set by count_parameters() if a class of the track has rules about them.
    std::optional<int64_t> parameters, tokens;  // tokens: per training run
    std::optional<std::string> not_dense;       // dense_problem() of the model

    // Number of replications per verdict, set by read_record().
    std::map<std::string, int64_t> replications;

    // Set by evaluate().
    HardwareClass hardware_class;
    bool by_loss = false;                // TrackClass::by_loss of the record's class
    std::vector<std::string> classes;    // classes with all rules met, in the track's order
    std::vector<KeyDifference> changes;  // baseline's config -> this one, without the seed
    RecordStatistics statistics;
    std::vector<RuleResult> rules;
    bool is_record = false;  // all rules met

    bool is_of(const std::string& track_class) const;
    std::string folder_name() const { return date + "_" + name; }
    std::vector<const RecordRun*> done_runs(const std::string& side) const;
};

// Sets the values derived from the runs and from the parameter counts.
void evaluate(Record& record, const Track& track);

// Rule "machine": at most one run in ten (for fewer than 20 runs: one) is marked. None for a record without machine states.
std::optional<RuleResult> machine_rule(const Record& record);

// The last key, sha256, is the hash of all others: values that cannot be recomputed cannot change unnoticed.
std::string record_to_json(const Record& record);
// Not evaluated. Throws a data error that names origin and the key that is missing or of another type.
Record record_from_json(const std::string& text, const std::string& origin);
// True if the text, accepted by record_from_json, is byte-identical to the written file.
bool has_its_hash(const std::string& text);

}  // namespace speedrun
