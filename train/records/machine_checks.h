// Checks what runs say of the wall clock and of their machine, and what `verify --strict` asks for beyond plain verify.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// wall_s has room for start-up and training, and ends before the next run begins; figures of the machine can be. Runs without
// them have no problem.
std::vector<std::string> wall_problems(const Record& record);

// Every rule is met, seeds leave no choice, few runs were interrupted; runs of a record from now on say wall_s and machine.
std::vector<std::string> strict_problems(const Record& record);

}  // namespace speedrun
