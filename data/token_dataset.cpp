#include "data/token_dataset.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Bytes read ahead at the start. A whole large dataset would be tens of gigabytes of disk traffic during the first
// steps; small datasets fit entirely.
constexpr int64_t kReadAheadBytes = int64_t{256} << 20;

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::string>& files, int32_t vocab_size, int32_t separator,
                           SeparatorPosition place)
    : vocab_size_(vocab_size), separator_(separator), place_(place) {
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

void TokenDataset::read_of(const Shard& shard, int64_t first, std::span<uint16_t> out) const {
    shard.read(first, out);
    // A maximum vectorises; an early-exit search does not. The position is only for the message.
    uint16_t largest = 0;
    for (const uint16_t token : out) largest = std::max(largest, token);
    if (largest < vocab_size_) return;
    const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t t) { return t >= vocab_size_; });
    throw_data("{}: token {} is {}, but vocab_size is {} (tokens must be below it)", shard.path(),
               first + (bad - out.begin()), *bad, vocab_size_);
}

void TokenDataset::read(int64_t first, std::span<uint16_t> out) const {
    const auto count = static_cast<int64_t>(out.size());
    if (first < 0 || first > num_tokens() - count) {
        throw_internal("stream of {} tokens at {}, the dataset has {}", count, first, num_tokens());
    }
    const auto after = std::upper_bound(first_token_.begin(), first_token_.end(), first);
    int64_t index = (after - first_token_.begin()) - 1;
    for (int64_t done = 0; done < count; ++index) {
        const int64_t begin = first + done - first_token(index);
        const int64_t length = std::min(count - done, shard(index).size() - begin);
        if (length > 0)
            read_of(shard(index), begin, out.subspan(static_cast<size_t>(done), static_cast<size_t>(length)));
        done += length;
    }
}

}  // namespace speedrun
