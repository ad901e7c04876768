#include "data/token_dataset.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// How much is read ahead at start. All of a large dataset would be tens of gigabytes of disk traffic that
// competes with the first steps; small ones fit whole.
constexpr int64_t kReadAheadBytes = int64_t{256} << 20;

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::string>& files, int32_t vocab_size, int32_t separator)
    : vocab_size_(vocab_size), separator_(separator) {
    if (separator < 0 || separator >= vocab_size) {
        throw_usage("vocab_size {} does not hold the dataset's separator token {}", vocab_size, separator);
    }
    if (files.empty()) throw_data("dataset without shard files");
    shards_.reserve(files.size());
    first_token_.push_back(0);
    for (const std::string& file : files) {
        shards_.emplace_back(file);
        first_token_.push_back(first_token_.back() + shards_.back().size());
        if (2 * first_token_.back() <= kReadAheadBytes) shards_.back().will_need();
    }
}

std::span<const uint16_t> TokenDataset::window(int64_t shard_index, int64_t first, int64_t count) const {
    if (shard_index < 0 || shard_index >= num_shards()) {
        throw_internal("shard {} of {}", shard_index, num_shards());
    }
    const Shard& source = shard(shard_index);
    if (first < 0 || count < 0 || first > source.size() - count) {
        throw_internal("{}: window of {} tokens at {}, the shard has {}", source.path(), count, first,
                       source.size());
    }
    const auto tokens = source.tokens().subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    // A maximum vectorises, a search that can stop early does not; the position only serves the message.
    uint16_t largest = 0;
    for (const uint16_t token : tokens) largest = std::max(largest, token);
    if (largest >= vocab_size_) {
        const auto bad =
            std::find_if(tokens.begin(), tokens.end(), [&](int32_t t) { return t >= vocab_size_; });
        throw_data("{}: token {} is {}, but vocab_size is {} (tokens must be below it)", source.path(),
                   first + (bad - tokens.begin()), *bad, vocab_size_);
    }
    return tokens;
}

void TokenDataset::read_stream(int64_t first, std::span<int32_t> out) const {
    const int64_t count = static_cast<int64_t>(out.size());
    if (first < 0 || first > num_tokens() - count) {
        throw_internal("stream of {} tokens at {}, the dataset has {}", count, first, num_tokens());
    }
    const auto after = std::upper_bound(first_token_.begin(), first_token_.end(), first);
    int64_t shard_index = (after - first_token_.begin()) - 1;
    int64_t done = 0;
    while (done < count) {
        const size_t i = static_cast<size_t>(shard_index);
        const int64_t begin = first + done - first_token_[i];
        const int64_t length = std::min(count - done, shards_[i].size() - begin);
        const auto tokens = window(shard_index, begin, length);
        std::copy(tokens.begin(), tokens.end(), out.begin() + done);
        done += length;
        ++shard_index;
    }
}

}  // namespace speedrun
