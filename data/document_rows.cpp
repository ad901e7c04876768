#include "data/document_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "data/permutation.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Appends the index of each separator in the shard.
void find_separators(std::span<const uint16_t> tokens, int32_t separator, std::vector<uint32_t>& starts) {
    if (separator > std::numeric_limits<uint16_t>::max()) return;
    const auto wanted = static_cast<uint16_t>(separator);
    // A block's comparisons vectorise, a search that can stop does not, and few blocks have a separator.
    constexpr size_t kBlock = 128;
    for (size_t begin = 0; begin < tokens.size(); begin += kBlock) {
        const auto block = tokens.subspan(begin, std::min(kBlock, tokens.size() - begin));
        uint16_t found = 0;
        for (const uint16_t token : block) found |= static_cast<uint16_t>(token == wanted);
        if (found == 0) continue;
        for (size_t i = 0; i < block.size(); ++i) {
            if (block[i] == wanted) starts.push_back(static_cast<uint32_t>(begin + i));
        }
    }
}

}  // namespace

DocumentRows::DocumentRows(const TokenDataset& dataset, const DocumentRowsOptions& options)
    : dataset_(dataset), options_(options) {
    if (options.max_document_tokens < 1)
        throw_usage("max_document_tokens is {}, expected 1 or more", options.max_document_tokens);
    first_document_.push_back(0);
    for (int64_t i = 0; i < dataset.num_shards(); ++i) {
        find_separators(dataset.shard(i).tokens(), dataset.separator(), starts_);
        first_document_.push_back(num_documents());
    }
    starts_.shrink_to_fit();
    if (num_documents() == 0) {
        throw_data("rows of documents: none of the {} training tokens ({} …) is the separator {}",
                   dataset.num_tokens(), dataset.shard(0).path(), dataset.separator());
    }
    if (num_documents() > std::numeric_limits<uint32_t>::max()) {
        throw_data("rows of documents: {} documents, at most {} are counted", num_documents(),
                   std::numeric_limits<uint32_t>::max());
    }
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

DocumentRows::Document DocumentRows::document(int64_t index) const {
    // upper_bound skips shards without documents: they start where the next one does.
    const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), index);
    const int64_t shard = (after - first_document_.begin()) - 1;
    const int64_t first = starts_[static_cast<size_t>(index)];
    const int64_t end =
        index + 1 < *after ? starts_[static_cast<size_t>(index) + 1] : dataset_.shard(shard).size();
    return {.shard = shard, .first = first, .length = end - first};
}

int64_t DocumentRows::cut_length(int64_t index) const {
    return std::min(document(index).length, options_.max_document_tokens);
}

DocumentRows::Packing DocumentRows::pack(int64_t order) const {
    const Permutation permutation(num_documents(), {options_.seed, order});
    Packing packing{.order = order, .first_places = {}};
    int64_t first = 0, filled = 0;
    for (int64_t place = 0; place < num_documents(); ++place) {
        if (filled == 0) first = place;
        filled += cut_length(options_.shuffle ? permutation(place) : place);
        if (filled < options_.sequence_length + 1) continue;
        packing.first_places.push_back(static_cast<uint32_t>(first));
        filled = 0;
    }
    packing.first_places.shrink_to_fit();
    return packing;
}

std::shared_ptr<const DocumentRows::Packing> DocumentRows::packing(int64_t order) const {
    if (!packings_[0] || packings_[0]->order != order) std::swap(packings_[0], packings_[1]);
    if (!packings_[0] || packings_[0]->order != order)
        packings_[0] = std::make_shared<const Packing>(pack(order));
    return packings_[0];
}

DocumentRows::Place DocumentRows::find(int64_t row) const {
    if (row < 0) throw_internal("row {}", row);
    const std::lock_guard lock(mutex_);
    if (!options_.shuffle) {
        auto found = packing(0);
        const auto rows = static_cast<int64_t>(found->first_places.size());
        return {.epoch = row / rows, .row = row % rows, .packing = std::move(found)};
    }
    while (first_row_.back() <= row) {
        const auto last = packing(static_cast<int64_t>(first_row_.size()) - 1);
        first_row_.push_back(first_row_.back() + static_cast<int64_t>(last->first_places.size()));
    }
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), row);
    const int64_t epoch = (after - first_row_.begin()) - 1;
    return {.epoch = epoch, .row = row - after[-1], .packing = packing(epoch)};
}

EpochCounts DocumentRows::counts(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    const auto rows = static_cast<int64_t>(packing(order_of(epoch))->first_places.size());
    const int64_t seen = rows * (options_.sequence_length + 1);
    return {.rows = rows, .tokens_seen = seen, .tokens_dropped = dataset_.num_tokens() - seen};
}

void DocumentRows::read(int64_t row, std::vector<Piece>& pieces) const {
    const Place place = find(row);
    const Permutation permutation(num_documents(), {options_.seed, place.packing->order});
    pieces.clear();
    int64_t at = place.packing->first_places[static_cast<size_t>(place.row)];
    for (int64_t left = options_.sequence_length + 1; left > 0; ++at) {
        const Document source = document(options_.shuffle ? permutation(at) : at);
        const int64_t length = std::min({source.length, options_.max_document_tokens, left});
        pieces.push_back(dataset_.window(source.shard, source.first, length));
        left -= length;
    }
}

std::string DocumentRows::describe() const {
    const EpochCounts epoch = counts(0);
    return fmt::format(
        "rows of documents: {} an epoch with {} tokens of {} documents, each cut at {} tokens; {} tokens "
        "({:.1f}%) are dropped",
        epoch.rows, epoch.tokens_seen, num_documents(), options_.max_document_tokens, epoch.tokens_dropped,
        100 * static_cast<double>(epoch.tokens_dropped) / static_cast<double>(dataset_.num_tokens()));
}

}  // namespace speedrun
