// Checks of the wall clock and machine of runs, and the additional checks of `verify --strict`.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// Returns problems of wall_s and machine: wall_s is at least start-up and training time and ends before the next run begins;
// values of the machine are in range. Runs without them have no problem.
std::vector<std::string> wall_problems(const Record& record);

// Returns violations of the strict rules: all rules met, seeds 1 to n, few interrupted runs; wall_s and machine in runs of
// records from 2026-11-29 on.
std::vector<std::string> strict_problems(const Record& record);

}  // namespace speedrun
