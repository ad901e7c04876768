#include "data/further_targets.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

void add_further_targets(Batch& batch, int64_t num_targets) {
    if (num_targets < 1) throw_internal("{} targets of a token", num_targets);
    const auto count = static_cast<int64_t>(batch.targets.size());
    batch.further_targets.resize(static_cast<size_t>(num_targets - 1));
    for (int64_t k = 1; k < num_targets; ++k) {
        std::vector<int32_t>& further = batch.further_targets[static_cast<size_t>(k - 1)];
        further.assign(batch.targets.size(), -1);
        for (int64_t t = 0; t + k < count; ++t)
            if (batch.positions[t + k] == batch.positions[t] + k) further[t] = batch.targets[t + k];
    }
}

}  // namespace speedrun
