#include "train/optim/state.h"

namespace speedrun {

std::vector<StateTensor> state_tensors(const ElementwiseOptimizer& optimizer, const Parameter& p) {
    std::vector<StateTensor> tensors;
    for (const StateKind& kind : optimizer.state_kinds()) tensors.push_back({kind, p.whole_shape(), {}});
    return tensors;
}

std::vector<StateTensor> state_tensors(const MatrixOptimizer& optimizer, const Parameter& p) {
    if (!p.is_matrix()) throw_internal("{} is no matrix, but its optimizer needs one", p.name);
    const std::vector<int64_t> whole = p.whole_shape();
    std::vector<std::vector<StateKind>> of_matrices;
    for (const auto& [rows, matrices] : p.row_blocks(optimizer.heads_per_matrix()))
        of_matrices.insert(of_matrices.end(), static_cast<size_t>(matrices),
                           optimizer.state_kinds(rows.count * whole[0] / p.shape[0] / matrices, whole[1]));
    std::vector<StateTensor> tensors;
    for (size_t k = 0; k < of_matrices.front().size(); ++k) {
        const StateKind& kind = of_matrices.front()[k];
        if (kind.per_element()) {
            tensors.push_back({kind, whole, {}});
            continue;
        }
        std::vector<int64_t> offsets{0};
        bool equal = true;
        for (const auto& kinds : of_matrices) {
            offsets.push_back(offsets.back() + kinds[k].values);
            equal = equal && kinds[k].values == kind.values;
        }
        std::vector<int64_t> shape{offsets.back()};
        if (equal) shape = {static_cast<int64_t>(of_matrices.size()), kind.values};
        tensors.push_back({kind, std::move(shape), std::move(offsets)});
    }
    return tensors;
}

std::vector<StateTensor> state_tensors(const OptimizerGroupConfig& group, const Parameter& p) {
    std::vector<StateTensor> tensors = std::visit(
        [&](const auto& optimizer) { return state_tensors(*optimizer, p); }, make_optimizer(group));
    for (const auto& [key, extension] : group.extensions.all())
        for (const StateKind& kind : extension->state_kinds()) tensors.push_back({kind, p.whole_shape(), {}});
    return tensors;
}

}  // namespace speedrun
