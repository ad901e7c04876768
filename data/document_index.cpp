#include "data/document_index.h"

#include <algorithm>
#include <limits>

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

DocumentIndex::DocumentIndex(const TokenDataset& dataset) : dataset_(dataset) {
    first_document_.push_back(0);
    for (int64_t i = 0; i < dataset.num_shards(); ++i) {
        find_separators(dataset.shard(i).tokens(), dataset.separator(), starts_);
        first_document_.push_back(size());
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

DocumentIndex::Document DocumentIndex::operator[](int64_t index) const {
    // upper_bound skips shards without documents: they start where the next one does.
    const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), index);
    const int64_t shard = (after - first_document_.begin()) - 1;
    const int64_t first = starts_[static_cast<size_t>(index)];
    const int64_t end =
        index + 1 < *after ? starts_[static_cast<size_t>(index) + 1] : dataset_.shard(shard).size();
    return {.shard = shard, .first = first, .length = end - first};
}

}  // namespace speedrun
