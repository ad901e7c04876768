// Checks that one run with the record's config can have written a run's metrics. Each check returns the first problem, which
// names line and values, or "". Checks after lines_problem() take lines that passed it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Every step and validation of the config has its line, in order; of steps, one in `every` (thin_metrics()). A run that
// diverged ends early.
std::string lines_problem(const std::vector<RunLine>& lines, const Config& config, int64_t every, bool done);

// Losses, norms and times are finite numbers above 0.
std::string values_problem(const std::vector<RunLine>& lines);

// The training clock is the sum of the step times, and stands still during validations.
std::string times_problem(const std::vector<RunLine>& lines);

// Learning rate and tokens of each step follow from the schedule, tokens_per_s from the step's time.
std::string schedule_problem(const std::vector<RunLine>& lines, const Config& config);

// Validation and the last steps of training have the same rows, windows and loss.
bool validates_as_it_trains(const Config& config);

// The mean of the runs' last validations fits their training losses before it. All runs have the config.
std::string last_losses_problem(const std::vector<const std::vector<RunLine>*>& runs, const Config& config);

// Lines of one run that repeat another run's, scaled or shifted too. With may_share_losses: times alone are compared.
std::string copy_problem(const std::vector<RunLine>& lines, const std::vector<RunLine>& others,
                         bool may_share_losses);

}  // namespace speedrun
