#include "data/batch_loader.h"

#include <algorithm>
#include <limits>
#include <span>

#include "data/permutation.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

void resize(Batch& batch, int64_t rows, int64_t sequence_length) {
    // Indices into the batch are int32.
    if (rows < 0 || rows > std::numeric_limits<int32_t>::max() / sequence_length) {
        throw_internal("batch of {} rows of {} tokens", rows, sequence_length);
    }
    const size_t total = static_cast<size_t>(rows * sequence_length);
    batch.tokens.resize(total);
    batch.targets.resize(total);
    batch.positions.resize(total);
    batch.first_key.resize(total);
    batch.valid_targets = batch.step_targets = 0;
}

struct RowLayout {
    int64_t length = 0;  // S, tokens of a row
    int32_t separator = 0;
    bool document_mask = true;
};

// Positions and first_key of a row of the batch.
void index_row(Batch& batch, int64_t row, const RowLayout& layout) {
    const int64_t S = layout.length;
    int32_t first_key = static_cast<int32_t>(row * S);
    for (int64_t i = 0; i < S; ++i) {
        const size_t at = static_cast<size_t>(row * S + i);
        if (layout.document_mask && batch.tokens[at] == layout.separator)
            first_key = static_cast<int32_t>(at);
        batch.positions[at] = static_cast<int32_t>(i);
        batch.first_key[at] = first_key;
    }
}

// The windows of a shard: as many as fit at every offset below S, but at least one where there is room at
// all.
int64_t windows_of(const Shard& shard, int64_t sequence_length, bool shuffle) {
    const int64_t room = shard.size() - 1;  // inputs that have a target
    if (room < sequence_length) return 0;
    if (!shuffle) return room / sequence_length;
    return std::max<int64_t>(1, (room - (sequence_length - 1)) / sequence_length);
}

}  // namespace

BatchLoader::BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options)
    : dataset_(dataset), options_(options) {
    const int64_t S = options.sequence_length;
    if (S < 1) throw_usage("sequence_length is {}, expected 1 or more", S);
    if (options.rows_per_step < 1) {
        throw_usage("rows_per_step is {}, expected 1 or more", options.rows_per_step);
    }
    first_window_.push_back(0);
    int64_t longest = 0;
    for (int64_t i = 0; i < dataset.num_shards(); ++i) {
        const Shard& shard = dataset.shard(i);
        longest = std::max(longest, shard.size());
        first_window_.push_back(first_window_.back() + windows_of(shard, S, options.shuffle));
    }
    if (num_windows() == 0) {
        throw_data(
            "training data too short: sequence_length {} needs {} tokens in a shard, the longest has {}", S,
            S + 1, longest);
    }
}

std::span<const uint16_t> BatchLoader::row_window(int64_t row) const {
    const int64_t S = options_.sequence_length;
    const int64_t epoch = row / num_windows();
    int64_t window = row % num_windows();
    if (options_.shuffle) window = Permutation(num_windows(), {options_.seed, epoch})(window);

    // upper_bound skips shards without windows: they start where the next one does.
    const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), window);
    const int64_t shard = (after - first_window_.begin()) - 1;
    const int64_t shard_first = first_window_[static_cast<size_t>(shard)];
    const int64_t shard_windows = *after - shard_first;
    int64_t offset = 0;
    if (options_.shuffle) {
        const int64_t slack = dataset_.shard(shard).size() - 1 - shard_windows * S;
        offset = window_offset(std::min(S, slack + 1), {options_.seed, epoch}, shard);
    }
    return dataset_.window(shard, offset + (window - shard_first) * S, S + 1);
}

void BatchLoader::fill(int64_t step, RowRange rows, Batch& batch) const {
    if (step < 0 || rows.first < 0 || rows.count < 0 || rows.first > options_.rows_per_step - rows.count) {
        throw_internal("rows {} to {} of step {}, a step has {}", rows.first, rows.first + rows.count, step,
                       options_.rows_per_step);
    }
    const int64_t S = options_.sequence_length;
    resize(batch, rows.count, S);
    for (int64_t row = 0; row < rows.count; ++row) {
        const auto window = row_window(step * options_.rows_per_step + rows.first + row);
        std::copy(window.begin(), window.end() - 1, batch.tokens.begin() + row * S);
        std::copy(window.begin() + 1, window.end(), batch.targets.begin() + row * S);
        index_row(batch, row, {S, dataset_.separator(), options_.document_mask});
    }
    batch.valid_targets = rows.count * S;  // a window holds the target of its last token too
    batch.step_targets = options_.rows_per_step * S;
}

ValidationLoader::ValidationLoader(const TokenDataset& dataset, const ValidationLoaderOptions& options)
    : dataset_(dataset), options_(options) {
    const int64_t S = options.sequence_length;
    if (S < 1) throw_usage("sequence_length is {}, expected 1 or more", S);
    if (options.val_tokens < 0) throw_usage("val_tokens is {}, expected 0 or more", options.val_tokens);
    const int64_t available = dataset.num_tokens() - 1;  // the first token is predicted from nothing
    if (available < 1) {
        throw_data("validation data is empty: {} has {} tokens, at least 2 are needed",
                   dataset.shard(0).path(), dataset.num_tokens());
    }
    if (options.val_tokens > available) {
        throw_data("validation data is too short: val_tokens is {}, the shards ({} …) have {} targets",
                   options.val_tokens, dataset.shard(0).path(), available);
    }
    num_targets_ = options.val_tokens == 0 ? available : options.val_tokens;
    num_rows_ = (num_targets_ + S - 1) / S;
}

void ValidationLoader::fill(RowRange rows, Batch& batch) const {
    if (rows.first < 0) throw_internal("validation row {}", rows.first);
    const int64_t S = options_.sequence_length;
    resize(batch, rows.count, S);
    std::fill(batch.tokens.begin(), batch.tokens.end(), dataset_.separator());
    std::fill(batch.targets.begin(), batch.targets.end(), -1);
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t begin = (rows.first + row) * S;
        const int64_t count = std::clamp<int64_t>(num_targets_ - begin, 0, S);
        if (count > 0) {
            const size_t at = static_cast<size_t>(row * S), length = static_cast<size_t>(count);
            dataset_.read_stream(begin, std::span(batch.tokens).subspan(at, length));
            dataset_.read_stream(begin + 1, std::span(batch.targets).subspan(at, length));
        }
        index_row(batch, row, {S, dataset_.separator(), options_.document_mask});
        batch.valid_targets += count;
    }
}

}  // namespace speedrun
