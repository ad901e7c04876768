// Checks of the wall clock and machine of runs, and the checks that `verify --strict` adds to plain verify.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// Problems of wall_s and machine: wall_s is at least start-up and training time and ends before the next run begins, and figures of
// the machine are in their range. Runs without them have no problem.
std::vector<std::string> wall_problems(const Record& record);

// Every rule is met, seeds leave no choice, few runs were interrupted; runs of records from 2026-11-29 on have wall_s and machine.
std::vector<std::string> strict_problems(const Record& record);

}  // namespace speedrun
