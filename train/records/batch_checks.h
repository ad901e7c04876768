// Compares the batches of two runs by their losses: a hard batch is hard for any model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/records/run_lines.h"

namespace speedrun {

// Returns the correlation of the changes of loss between steps, over the later half of the steps with lines in both runs. None:
// too few lines.
std::optional<double> loss_correlation(const std::vector<RunLine>& a, const std::vector<RunLine>& b);

// True if two configs draw the same batches for equal seeds.
bool same_batches(const std::string& config, const std::string& other);
// True if the seed determines the batches.
bool draws_by_seed(const std::string& config);

// Returns the first problem, or "": losses on equal batches correlate, losses of two seeds do not.
std::string batches_problem(const std::vector<RunLine>& a, const std::vector<RunLine>& b, bool one_seed);

}  // namespace speedrun
