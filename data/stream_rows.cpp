#include "data/stream_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/permutation.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Returns the number of windows of a shard: the number that fits at every offset below S, but at least one if the shard
// has room.
int64_t windows_of(const Shard& shard, int64_t sequence_length, bool shuffle) {
    const int64_t room = shard.size() - 1;  // inputs with a target
    if (room < sequence_length) return 0;
    if (!shuffle) return room / sequence_length;
    return std::max<int64_t>(1, (room - (sequence_length - 1)) / sequence_length);
}

}  // namespace

StreamRows::StreamRows(const TokenDataset& dataset, const StreamRowsOptions& options)
    : dataset_(dataset), options_(options) {
    int64_t& W = options_.range.window_tokens;
    if (W == 0) W = options.sequence_length;
    if (W < options.sequence_length)
        throw_usage("windows of {} tokens are cut into rows of {}", W, options.sequence_length);
    first_window_.push_back(0);
    int64_t longest = 0;
    for (int64_t i = 0; i < dataset.num_shards(); ++i) {
        const Shard& shard = dataset.shard(i);
        longest = std::max(longest, shard.size());
        first_window_.push_back(first_window_.back() + windows_of(shard, W, options.shuffle));
    }
    if (num_windows() == 0) {
        throw_data(
            "training data too short: sequence_length {} needs {} tokens in a shard, the longest has {}", W,
            W + 1, longest);
    }
}

StreamRows::Place StreamRows::place_of(int64_t row) const {
    const WindowRange& range = options_.range;
    if (!options_.shuffle || range.count == 0)
        return {.window = range.first + row / pieces(), .piece = row % pieces()};
    const int64_t round = row / (range.count * pieces()), in_round = row % (range.count * pieces());
    return {.window = range.first + round * range.count + in_round % range.count,
            .piece = in_round / range.count};
}

// Adjacent windows of a shard overlap by one token, the last target and next first input. They hold one token more than
// inputs. The same holds for the rows of a window.
EpochCounts StreamRows::counts(int64_t) const {
    const int64_t S = options_.sequence_length, used = pieces() * S;
    const bool neighbours = used == options_.range.window_tokens;
    int64_t seen = num_windows() * (used + (neighbours ? 0 : 1));
    for (size_t i = 1; neighbours && i < first_window_.size(); ++i)
        seen += first_window_[i] > first_window_[i - 1];
    return {.rows = num_windows() * pieces(),
            .tokens_seen = seen,
            .tokens_dropped = dataset_.num_tokens() - seen};
}

void StreamRows::read(int64_t row, std::span<uint16_t> tokens) const {
    const int64_t S = options_.sequence_length, W = options_.range.window_tokens;
    const Place place = place_of(row);
    const int64_t epoch = place.window / num_windows();
    int64_t window = place.window % num_windows();
    if (options_.shuffle) window = Permutation(num_windows(), {options_.seed, epoch})(window);

    // upper_bound skips shards without windows: they start where the next shard does.
    const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), window);
    const int64_t shard = (after - first_window_.begin()) - 1;
    const int64_t shard_first = first_window_[static_cast<size_t>(shard)];
    const int64_t shard_windows = *after - shard_first;
    int64_t offset = 0;
    if (options_.shuffle) {
        const int64_t slack = dataset_.shard(shard).size() - 1 - shard_windows * W;
        offset = window_offset(std::min(W, slack + 1), {options_.seed, epoch}, shard);
    }
    dataset_.read(dataset_.first_token(shard) + offset + (window - shard_first) * W + place.piece * S,
                  tokens);
}

std::string StreamRows::describe() const {
    const EpochCounts epoch = counts(0);
    return fmt::format("rows of the stream: {} an epoch with {} tokens; {} tokens are in none", epoch.rows,
                       epoch.tokens_seen, epoch.tokens_dropped);
}

}  // namespace speedrun
