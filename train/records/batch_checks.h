// Compares the batches of two runs by their losses: a hard batch is hard for any model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/records/run_lines.h"

namespace speedrun {

// Correlation of the changes of loss from step to step, over the later half of the steps that both runs have lines of. None:
// too few lines.
std::optional<double> loss_correlation(const std::vector<RunLine>& a, const std::vector<RunLine>& b);

// Two configs draw the same batches for one seed.
bool same_batches(const std::string& config, const std::string& other);
// Batches are drawn by the seed.
bool draws_by_seed(const std::string& config);

// Returns the first problem, or "": losses on equal batches correlate, losses of two seeds do not.
std::string batches_problem(const std::vector<RunLine>& a, const std::vector<RunLine>& b, bool one_seed);

}  // namespace speedrun
