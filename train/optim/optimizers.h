// The optimizer of a group of the config.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "train/config/config.h"
#include "train/optim/optimizer.h"

namespace speedrun {

using AnyOptimizer =
    std::variant<std::unique_ptr<const ElementwiseOptimizer>, std::unique_ptr<const MatrixOptimizer>>;

// THE list of optimizers: one of this group's type.
AnyOptimizer make_optimizer(const OptimizerGroupConfig& group);

// Does an optimizer of this type need whole matrices?
bool needs_whole_matrices(const OptimizerGroupConfig& group);
// The kinds of state that it has of matrices rows x cols (0 x 0: of what is not a matrix), in its order.
std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols);

}  // namespace speedrun
