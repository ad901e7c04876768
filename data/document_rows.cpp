#include "data/document_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/permutation.h"
#include "kernels/device/error.h"

namespace speedrun {

DocumentRows::DocumentRows(const TokenDataset& dataset, std::shared_ptr<const DocumentIndex> index,
                           const DocumentRowsOptions& options)
    : dataset_(dataset), documents_(std::move(index)), options_(options) {
    if (options.max_document_tokens < 1)
        throw_usage("max_document_tokens is {}, expected 1 or more", options.max_document_tokens);
    int64_t packed = 0;
    for (int64_t i = 0; i < num_documents(); ++i) packed += cut_length(i);
    if (packed < options.sequence_length + 1) {
        throw_data(
            "rows of documents: sequence_length {} needs {} tokens in a row, the {} documents of the training "
            "data have {}, each cut at {}",
            options.sequence_length, options.sequence_length + 1, num_documents(), packed,
            options.max_document_tokens);
    }
}

int64_t DocumentRows::cut_length(int64_t index) const {
    return std::min((*documents_)[index].length, options_.max_document_tokens);
}

DocumentRows::Packing DocumentRows::pack(int64_t epoch) const {
    const Permutation permutation(num_documents(), {options_.seed, epoch});
    Packing packing{.epoch = epoch, .first_places = {}};
    int64_t first = 0, filled = 0;
    for (int64_t place = epoch == options_.begin.epoch ? options_.begin.place : 0; place < num_documents();
         ++place) {
        if (filled == 0) first = place;
        filled += cut_length(options_.shuffle ? permutation(place) : place);
        if (filled < options_.sequence_length + 1) continue;
        packing.first_places.push_back(static_cast<uint32_t>(first));
        filled = 0;
    }
    packing.first_places.shrink_to_fit();
    return packing;
}

std::shared_ptr<const DocumentRows::Packing> DocumentRows::packing(int64_t epoch) const {
    // Without shuffle, whole epochs are equal: the second epoch after the beginning represents all later ones.
    if (!options_.shuffle) epoch = std::min(epoch, options_.begin.epoch + (options_.begin.place > 0 ? 1 : 0));
    if (!packings_[0] || packings_[0]->epoch != epoch) std::swap(packings_[0], packings_[1]);
    if (!packings_[0] || packings_[0]->epoch != epoch)
        packings_[0] = std::make_shared<const Packing>(pack(epoch));
    return packings_[0];
}

DocumentRows::Place DocumentRows::find(int64_t row) const {
    if (row < 0) throw_internal("row {}", row);
    const std::lock_guard lock(mutex_);
    const int64_t begin = options_.begin.epoch;
    while (first_row_.back() <= row) {
        const auto last = packing(begin + static_cast<int64_t>(first_row_.size()) - 1);
        first_row_.push_back(first_row_.back() + static_cast<int64_t>(last->first_places.size()));
    }
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), row);
    const int64_t epoch = begin + (after - first_row_.begin()) - 1;
    return {.epoch = epoch, .row = row - after[-1], .packing = packing(epoch)};
}

DocumentPosition DocumentRows::begin_of(int64_t row) const {
    const Place place = find(row);
    return {.epoch = place.epoch, .place = place.packing->first_places[static_cast<size_t>(place.row)]};
}

EpochCounts DocumentRows::counts(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    const auto rows = static_cast<int64_t>(packing(epoch)->first_places.size());
    const int64_t seen = rows * (options_.sequence_length + 1);
    return {.rows = rows, .tokens_seen = seen, .tokens_dropped = documents_->num_tokens() - seen};
}

void DocumentRows::read(int64_t row, std::span<uint16_t> tokens) const {
    const Place place = find(row);
    const Permutation permutation(num_documents(), {options_.seed, place.epoch});
    int64_t at = place.packing->first_places[static_cast<size_t>(place.row)];
    for (std::span<uint16_t> left = tokens; !left.empty(); ++at) {
        const DocumentIndex::Document source = (*documents_)[options_.shuffle ? permutation(at) : at];
        const int64_t length =
            std::min({source.length, options_.max_document_tokens, static_cast<int64_t>(left.size())});
        std::span<uint16_t> stored = left.first(static_cast<size_t>(length));
        left = left.subspan(stored.size());
        if (source.bare) {
            stored.front() = static_cast<uint16_t>(dataset_.separator());
            stored = stored.subspan(1);
        }
        dataset_.read(source.first, stored);
    }
}

std::string DocumentRows::describe() const {
    const EpochCounts epoch = counts(0);
    return fmt::format(
        "rows of documents: {} an epoch with {} tokens of {} documents, each cut at {} tokens; {} tokens "
        "({:.1f}%) are dropped",
        epoch.rows, epoch.tokens_seen, num_documents(), options_.max_document_tokens, epoch.tokens_dropped,
        100 * static_cast<double>(epoch.tokens_dropped) / static_cast<double>(documents_->num_tokens()));
}

}  // namespace speedrun
