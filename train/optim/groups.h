// Optimizer groups of a config: which group takes which parameter, what that asks of buckets, and the
// optimizer that each group is.
#pragma once

#include <memory>
#include <vector>

#include "train/sharding/optimizer.h"
#include "train/sharding/reducer.h"

namespace speedrun {

// The group index of each parameter: the first group with a pattern (shell wildcards) that matches its name.
// Throws a usage error naming every parameter that no group takes, a group that takes none, and a vector
// given to muon.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

// How the parameters of these groups lie in memory when these ranks share it.
BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config);

// An optimizer of this group's type for these buckets, which the type can train (see assign_groups), in the
// order in which they are stepped. What it is given must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Bucket*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Reducer& reducer, Runtime& runtime);
// The kinds of state that it has of matrices rows x cols (0 x 0: of what is not a matrix), in the order of
// Optimizer::state.
std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols);
// Does an optimizer of this type need whole matrices?
inline bool needs_whole_matrices(const OptimizerGroupConfig& group) {
    return group.type == OptimizerKind::muon;
}

// The optimizer of each group, for its buckets in the order in which this plan steps them.
std::vector<std::unique_ptr<Optimizer>> make_optimizers(const OptimizersConfig& config, StepOrder order,
                                                        ParameterStore& parameters, GradientStore& gradients,
                                                        Reducer& reducer, Runtime& runtime);

}  // namespace speedrun
