#include "train/optim/optimizers.h"

#include <numeric>

#include "train/optim/adamw.h"
#include "train/optim/lion.h"
#include "train/optim/muon.h"

namespace speedrun {

AnyOptimizer make_optimizer(const OptimizerGroupConfig& group) {
    switch (group.type) {
        case OptimizerKind::adamw:
            return std::make_unique<const Adamw>(group);
        case OptimizerKind::muon:
            return std::make_unique<const Muon>(group);
        case OptimizerKind::lion:
            return std::make_unique<const Lion>(group);
    }
    throw_internal("no such optimizer");
}

std::vector<int64_t> shape_of_state(const std::vector<int64_t>& numbers) {
    for (const int64_t each : numbers)
        if (each != numbers.front()) return {std::accumulate(numbers.begin(), numbers.end(), int64_t{0})};
    return {static_cast<int64_t>(numbers.size()), numbers.front()};
}

bool needs_whole_matrices(const OptimizerGroupConfig& group) {
    return std::holds_alternative<std::unique_ptr<const MatrixOptimizer>>(make_optimizer(group));
}

std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols) {
    const AnyOptimizer optimizer = make_optimizer(group);
    if (const auto* elementwise = std::get_if<std::unique_ptr<const ElementwiseOptimizer>>(&optimizer))
        return (*elementwise)->state_kinds();
    return std::get<std::unique_ptr<const MatrixOptimizer>>(optimizer)->state_kinds(rows, cols);
}

}  // namespace speedrun
