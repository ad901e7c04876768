// Checks order and start times of a record's runs, and their program and machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/records/record.h"

namespace speedrun {

// Returns an upper bound of the seconds that a run spends in validations, estimated from its training time: validation computes
// a part of a step.
double longest_validations_s(const RecordRun& run, const Config& config, int64_t tokens_per_validation);

// Returns all problems, one per line. validations_s: longest_validations_s() of each run. now: seconds since 1970.
std::vector<std::string> timeline_problems(const Record& record, const std::vector<double>& validations_s,
                                           int64_t now);

// Checks the form of program and commit hashes, that two builds differ, and that machine and build agree with the runs.
std::vector<std::string> program_problems(const Record& record);

// Parses "YYYY-MM-DDTHH:MM:SSZ" into seconds since 1970; none if invalid.
std::optional<int64_t> seconds_of_utc(const std::string& text);

}  // namespace speedrun
