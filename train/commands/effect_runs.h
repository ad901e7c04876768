// The number of runs of an attempt from the effect that it is to show, and how long they will take.
#pragma once

#include <string>

#include "train/commands/commands.h"

namespace speedrun {

// Runs of each side by --effect and the record that --against names; the track's least number at least. Usage error for an
// effect that is none, beside --runs or --seeds, without such a record, or that more than 1,000 runs would have to show.
int64_t runs_for_effect(const RecordAttemptOptions& options);

// Returns the lines printed before the first run: the reason for the number of runs, and their time if the new side is as fast as
// the record that --against names. Empty without such a record.
std::string plan_of_runs(const RecordAttemptOptions& options, int64_t runs);

}  // namespace speedrun
