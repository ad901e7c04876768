#include "data/mixed_rows.h"

#include <fmt/format.h>

#include "kernels/device/error.h"

namespace speedrun {

MixedRows::MixedRows(std::shared_ptr<const MixtureOrder> order,
                     std::vector<std::unique_ptr<const RowSource>> sources, int64_t first_row)
    : order_(std::move(order)), sources_(std::move(sources)), first_row_(first_row) {
    if (static_cast<int>(sources_.size()) != order_->num_sources())
        throw_internal("{} sources of rows, {} weights", sources_.size(), order_->num_sources());
}

MixedRows::Place MixedRows::place_of(int64_t row) const {
    const int64_t in_run = first_row_ + row;
    const int source = order_->source_of(in_run);
    return {.source = sources_[static_cast<size_t>(source)].get(),
            .row = order_->rows_before(source, in_run) - order_->rows_before(source, first_row_)};
}

int64_t MixedRows::epoch(int64_t row) const {
    const Place place = place_of(row);
    return place.source->epoch(place.row);
}

EpochCounts MixedRows::counts(int64_t epoch) const {
    EpochCounts sum;
    for (const auto& source : sources_) {
        const EpochCounts counts = source->counts(epoch);
        sum.rows += counts.rows;
        sum.tokens_seen += counts.tokens_seen;
        sum.tokens_dropped += counts.tokens_dropped;
    }
    return sum;
}

void MixedRows::read(int64_t row, std::span<uint16_t> tokens) const {
    const Place place = place_of(row);
    place.source->read(place.row, tokens);
}

std::string MixedRows::describe() const {
    std::string text = "rows of a mixture:";
    for (int i = 0; i < order_->num_sources(); ++i)
        text += fmt::format("\n  source {}, {:.4g}% of the rows: {}", i, 100 * order_->share(i),
                            sources_[static_cast<size_t>(i)]->describe());
    return text;
}

}  // namespace speedrun
