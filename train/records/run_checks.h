// Checks of whether a run with the record's config can have written a run's metrics. Each check returns the first problem, with
// line and values, or "". Checks after lines_problem() require lines that passed it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Every step and validation of the config has its line, in order; every `every`-th step (thin_metrics()). A diverged run ends
// early.
std::string lines_problem(const std::vector<RunLine>& lines, const Config& config, int64_t every, bool done);

// Losses, norms and times are finite numbers above 0.
std::string values_problem(const std::vector<RunLine>& lines);

// The training clock is the sum of the step times, and is constant during validations.
std::string times_problem(const std::vector<RunLine>& lines);

// Learning rate and tokens of each step follow from the schedule, tokens_per_s from the step's time.
std::string schedule_problem(const std::vector<RunLine>& lines, const Config& config);

// True if validation and the last training steps have the same rows, windows and loss.
bool validates_as_it_trains(const Config& config);

// The mean of the runs' last validations is consistent with their previous training losses. All runs have the config.
std::string last_losses_problem(const std::vector<const std::vector<RunLine>*>& runs, const Config& config);

// Returns a problem if the run's lines repeat another run's, possibly scaled or shifted. may_share_losses: compares times only.
std::string copy_problem(const std::vector<RunLine>& lines, const std::vector<RunLine>& others,
                         bool may_share_losses);

}  // namespace speedrun
