// A record's runs repeated by whoever doubts them: RECORD/replications/<date>_<hardware>.json, with a verdict.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

inline constexpr const char* kReplicated = "replicated";
inline constexpr const char* kNotReplicated = "not replicated";
// Losses are the record's, times say nothing.
inline constexpr const char* kOtherHardware = "other hardware";
inline constexpr const char* kBusyMachine = "busy machine";

struct Replication {
    std::string replicates;  // the record's folder
    Record attempt;          // the new runs, with the record's configs and other seeds; evaluated
    // Members that judge() fills.
    std::string verdict;
    std::vector<std::string> reasons;
    std::optional<TestResult> ratio_test;  // the factor here is below the record's
};

// Verdict, in this order:
//   not replicated   a run diverged, or the track's rule for losses is not met
//   other hardware   the class of hardware is another
//   busy machine     the rule `machine` is not met
//   not replicated   the factor against the baseline is below the record's by test_ratio_less(), or not above 1
//   replicated       none of these
void judge(Replication& replication, const Record& record, const Track& track);

std::string replication_to_json(const Replication& replication);
// Not judged again, attempt not evaluated. Throws a data error that names `origin`.
Replication replication_from_json(const std::string& text, const std::string& origin);

// Problems of all files in FOLDER/replications, each one line: form, hash, figures, verdict, configs, seeds.
std::vector<std::string> replication_problems(const std::string& folder, const Record& record,
                                              const Track& track);
// Number of files in FOLDER/replications for each verdict.
std::map<std::string, int64_t> count_replications(const std::string& folder);

// Writes the file into `folder`, which is made; returns its path. Another one of the day and hardware stays.
std::string write_replication(const std::string& folder, const Replication& replication);

}  // namespace speedrun
