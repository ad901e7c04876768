// Checks order and starts of a record's runs, and the program and machine that they name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/records/record.h"

namespace speedrun {

// Upper bound of the seconds that a run spends in its validations. Training alone is measured, and validation computes a
// part of the same step.
double longest_validations_s(const RecordRun& run, const Config& config, int64_t tokens_per_validation);

// All problems, each in one line. validations_s: longest_validations_s() of each run. now: seconds since 1970.
std::vector<std::string> timeline_problems(const Record& record, const std::vector<double>& validations_s,
                                           int64_t now);

// Hashes of programs and commits have their form, and two builds are two. Machine and build agree with the runs.
std::vector<std::string> program_problems(const Record& record);

// Seconds since 1970 of "YYYY-MM-DDTHH:MM:SSZ"; none: not such a time.
std::optional<int64_t> seconds_of_utc(const std::string& text);

}  // namespace speedrun
