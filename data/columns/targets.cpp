#include "data/columns/targets.h"

#include "kernels/device/error.h"

namespace speedrun {

namespace {

void append_later_targets(Column::Values& values, const Batch& batch, int64_t distance) {
    const auto count = static_cast<int64_t>(batch.targets.size());
    for (int64_t t = 0; t < count; ++t) {
        const bool in_row =
            t + distance < count && batch.positions[t + distance] == batch.positions[t] + distance;
        values.push_back(in_row ? batch.targets[t + distance] : -1);
    }
}

void append_prefixes(Column::Values& values, const Batch& batch, const PrefixTable& prefixes) {
    if (!prefixes) throw_internal("targets with prefixes, without a table of prefixes");
    for (const int32_t target : batch.targets) {
        if (target >= static_cast<int32_t>(prefixes->size()))
            throw_internal("target {}, prefixes of {} tokens", target, prefixes->size());
        values.push_back(target < 0 ? -1 : (*prefixes)[static_cast<size_t>(target)]);
    }
}

}  // namespace

Column targets_column(const TargetRows& targets) {
    if (targets.num_tokens < 1) throw_internal("{} targets of a token", targets.num_tokens);
    return {.name = "targets",
            .kind = ColumnKind::target,
            .rows = targets.count(),
            .padding = -1,
            .compute = [targets](Column::Values& values, const Batch& batch, const BatchLayout& layout) {
                values = batch.targets;
                for (int64_t k = 1; k < targets.num_tokens; ++k) append_later_targets(values, batch, k);
                if (targets.prefix) append_prefixes(values, batch, layout.prefixes);
            }};
}

}  // namespace speedrun
