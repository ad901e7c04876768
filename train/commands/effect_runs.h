// Number of runs of an attempt for the effect to detect, and their expected time.
#pragma once

#include <string>

#include "train/commands/commands.h"

namespace speedrun {

// Returns the runs per side for --effect and the record of --against, at least the track's minimum. Usage errors: an invalid
// effect, --runs or --seeds, no such record, more than 1,000 runs.
int64_t runs_for_effect(const RecordAttemptOptions& options);

// Returns the lines printed before the first run: the reason for the number of runs, and their time if the new side is as fast
// as the record of --against. Empty without such a record.
std::string plan_of_runs(const RecordAttemptOptions& options, int64_t runs);

}  // namespace speedrun
