#include "data/columns/key_positions.h"

#include <fmt/format.h>

namespace speedrun {

namespace {

// Calls append(row, seen) for each token of the part.
template <class Append>
void each_token(const KeptKeys& kept, const Batch& batch, const BatchLayout& layout, const Append& append) {
    const int64_t S = layout.sequence_length, L = layout.part.local_length(S);
    for (size_t t = 0; t < batch.positions.size(); ++t)
        append(static_cast<int64_t>(t) / L, kept.visible(batch.positions[t], batch.first_key[t] % S));
}

}  // namespace

Column last_key_column(const KeyPositions& places) {
    return {.name = fmt::format("place in window {}", places.window),
            .kind = ColumnKind::position,
            .after_cut = true,
            .compute = [places](Column::Values& values, const Batch& batch, const BatchLayout& layout) {
                values.clear();
                each_token(places.kept, batch, layout, [&](int64_t, const KeptKeys::Visible& seen) {
                    values.push_back(static_cast<int32_t>(seen.last));
                });
            }};
}

Column first_kept_key_column(const KeyPositions& places) {
    return {.name = fmt::format("first_key in window {}", places.window),
            .kind = ColumnKind::position,
            .after_cut = true,
            .compute = [places](Column::Values& values, const Batch& batch, const BatchLayout& layout) {
                values.clear();
                each_token(places.kept, batch, layout, [&](int64_t row, const KeptKeys::Visible& seen) {
                    values.push_back(static_cast<int32_t>(row * places.kept.count() + seen.first));
                });
            }};
}

}  // namespace speedrun
