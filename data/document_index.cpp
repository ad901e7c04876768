#include "data/document_index.h"

#include <algorithm>
#include <limits>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Appends the index of each separator in the shard.
void find_separators(const Shard& shard, int32_t separator, std::vector<uint32_t>& starts) {
    if (separator > std::numeric_limits<uint16_t>::max()) return;
    const auto requested = static_cast<uint16_t>(separator);
    // Comparisons of a whole block vectorise; an early-exit search does not. Few blocks contain a separator.
    constexpr int64_t kBlock = 128, kTokensRead = kBlock << 12;
    std::vector<uint16_t> tokens;
    for (int64_t first = 0; first < shard.size(); first += kTokensRead) {
        tokens.resize(static_cast<size_t>(std::min(kTokensRead, shard.size() - first)));
        shard.read(first, tokens);
        for (size_t begin = 0; begin < tokens.size(); begin += kBlock) {
            const auto block =
                std::span(tokens).subspan(begin, std::min<size_t>(kBlock, tokens.size() - begin));
            uint16_t found = 0;
            for (const uint16_t token : block) found |= static_cast<uint16_t>(token == requested);
            if (found == 0) continue;
            for (size_t i = 0; i < block.size(); ++i) {
                if (block[i] == requested)
                    starts.push_back(static_cast<uint32_t>(first + static_cast<int64_t>(begin + i)));
            }
        }
    }
}

// True if the stream is not empty and does not begin with the separator.
bool begins_with_text(const TokenDataset& dataset) {
    if (dataset.num_tokens() == 0) return false;
    uint16_t first = 0;
    dataset.read(0, {&first, 1});
    return first != dataset.separator();
}

}  // namespace

DocumentIndex::DocumentIndex(const TokenDataset& dataset) : dataset_(dataset), end_(dataset.num_tokens()) {
    const bool after = dataset.separator_position() == SeparatorPosition::after;
    bare_ = after && begins_with_text(dataset);
    first_document_.push_back(0);
    for (int64_t i = 0; i < dataset.num_shards(); ++i) {
        const size_t before = starts_.size();
        find_separators(dataset.shard(i), dataset.separator(), starts_);
        if (after && starts_.size() > before && dataset.first_token(i) + starts_.back() + 1 == end_) {
            --end_;
            starts_.pop_back();
        }
        first_document_.push_back(static_cast<int64_t>(starts_.size()));
    }
    starts_.shrink_to_fit();
    if (size() == 0) {
        throw_data("rows of documents: none of the {} training tokens ({} …) is the separator {}",
                   dataset.num_tokens(), dataset.shard(0).path(), dataset.separator());
    }
    if (size() > std::numeric_limits<uint32_t>::max()) {
        throw_data("rows of documents: {} documents, at most {} are counted", size(),
                   std::numeric_limits<uint32_t>::max());
    }
}

DocumentIndex::Start DocumentIndex::start_of(int64_t separator) const {
    // upper_bound skips shards without documents: they start where the next shard does.
    const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), separator);
    const int64_t shard = (after - first_document_.begin()) - 1;
    return {.shard = shard, .token = dataset_.first_token(shard) + starts_[static_cast<size_t>(separator)]};
}

DocumentIndex::Document DocumentIndex::operator[](int64_t index) const {
    const auto count = static_cast<int64_t>(starts_.size());
    if (bare_ && index == 0) return {.length = 1 + (count > 0 ? start_of(0).token : end_), .bare = true};
    const int64_t separator = index - bare_;
    const Start start = start_of(separator);
    const auto shard = static_cast<size_t>(start.shard);
    int64_t end = end_;
    if (separator + 1 < first_document_[shard + 1])
        end = dataset_.first_token(start.shard) + starts_[static_cast<size_t>(separator) + 1];
    else if (dataset_.separator_position() == SeparatorPosition::before)
        end = dataset_.first_token(start.shard + 1);
    else if (separator + 1 < count)
        end = start_of(separator + 1).token;
    return {.first = start.token, .length = end - start.token};
}

}  // namespace speedrun
