#include "data/further_targets.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

void add_further_targets(Batch& batch, int64_t num_tokens, std::span<const int32_t> prefixes) {
    if (num_tokens < 1) throw_internal("{} targets of a token", num_tokens);
    const auto count = static_cast<int64_t>(batch.targets.size());
    batch.further_targets.resize(static_cast<size_t>(num_tokens - 1) + (prefixes.empty() ? 0 : 1));
    for (int64_t k = 1; k < num_tokens; ++k) {
        std::vector<int32_t>& further = batch.further_targets[static_cast<size_t>(k - 1)];
        further.assign(batch.targets.size(), -1);
        for (int64_t t = 0; t + k < count; ++t)
            if (batch.positions[t + k] == batch.positions[t] + k) further[t] = batch.targets[t + k];
    }
    if (prefixes.empty()) return;
    std::vector<int32_t>& prefix_of_target = batch.further_targets.back();
    prefix_of_target.clear();
    for (const int32_t target : batch.targets) {
        if (target >= static_cast<int32_t>(prefixes.size()))
            throw_internal("target {}, prefixes of {} tokens", target, prefixes.size());
        prefix_of_target.push_back(target < 0 ? -1 : prefixes[static_cast<size_t>(target)]);
    }
}

}  // namespace speedrun
