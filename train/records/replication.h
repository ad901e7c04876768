// A repetition of a record's runs by another user: RECORD/replications/<date>_<hardware>.json, with a verdict.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

inline constexpr const char* kReplicated = "replicated";
inline constexpr const char* kNotReplicated = "not replicated";
// Verdicts that confirm the losses but do not judge the times.
inline constexpr const char* kOtherHardware = "other hardware";
inline constexpr const char* kBusyMachine = "busy machine";

struct Replication {
    std::string replicates;  // folder of the record
    Record attempt;          // the new runs, with the record's configs and other seeds; evaluated
    // Set by judge().
    std::string verdict;
    std::vector<std::string> reasons;
    std::optional<TestResult> ratio_test;  // alternative: the factor here is below the record's
};

// Sets the verdict, the first of:
//   not replicated   a run diverged, or the track's rule for losses is not met;
//   other hardware   the hardware class differs;
//   busy machine     the rule `machine` is not met;
//   not replicated   the factor against the baseline is below the record's by test_ratio_less(), or not above 1;
//   replicated       otherwise
void judge(Replication& replication, const Record& record, const Track& track);

std::string replication_to_json(const Replication& replication);
// Neither judged nor evaluated. Throws a data error that names `origin`.
Replication replication_from_json(const std::string& text, const std::string& origin);

// Returns problems of all files in FOLDER/replications, one per line: form, hash, values, verdict, configs, seeds.
std::vector<std::string> replication_problems(const std::string& folder, const Record& record,
                                              const Track& track);
// Returns the number of files in FOLDER/replications per verdict.
std::map<std::string, int64_t> count_replications(const std::string& folder);

// Writes a new file into `folder`, which is created if needed; returns its path. Existing files are kept.
std::string write_replication(const std::string& folder, const Replication& replication);

}  // namespace speedrun
