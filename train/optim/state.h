// The state tensors of an optimizer, and of the extensions of its group, for a whole parameter: checkpoints and sharded updates
// derive theirs from them.
#pragma once

#include <cstdint>
#include <vector>

#include "train/optim/optimizers.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct StateTensor {
    StateKind kind;  // a kind per matrix: the first matrix's
    std::vector<int64_t> shape;
    std::vector<int64_t> offsets;  // per matrix: offset of each matrix and of the end, in numbers
};

// The kinds of state in order of declaration. A kind per matrix has shape (matrices, numbers), or one dimension if the
// matrices differ.
std::vector<StateTensor> state_tensors(const ElementwiseOptimizer& optimizer, const Parameter& p);
std::vector<StateTensor> state_tensors(const MatrixOptimizer& optimizer, const Parameter& p);
// With the extensions of the group.
std::vector<StateTensor> state_tensors(const OptimizerGroupConfig& group, const Parameter& p);

}  // namespace speedrun
