#include "data/kept_keys.h"

#include <algorithm>

namespace speedrun {

std::vector<PlaceRange> chunks_of(const ContextPart& part, int64_t sequence_length) {
    if (part.size == 1) return {{0, sequence_length}};
    const int64_t K = part.chunk_length(sequence_length);
    std::vector<PlaceRange> chunks;
    for (const int chunk : {part.index, 2 * part.size - 1 - part.index}) {
        const PlaceRange places{std::min(chunk * K, sequence_length),
                                std::min((chunk + 1) * K, sequence_length)};
        if (places.count() > 0) chunks.push_back(places);
    }
    return chunks;
}

KeptKeys::KeptKeys(const ContextPart& part, const AttendedRow& row) {
    for (const PlaceRange& chunk : chunks_of(part, row.sequence_length)) {
        const int64_t begin = row.window > 0 ? std::max<int64_t>(0, chunk.begin - row.window + 1) : 0;
        if (!ranges_.empty() && begin <= ranges_.back().end) {
            ranges_.back().end = chunk.end;
        } else {
            ranges_.push_back({begin, chunk.end});
        }
    }
    for (const PlaceRange& range : ranges_) count_ += range.count();
}

int64_t KeptKeys::index(int64_t place) const {
    int64_t before = 0;
    for (const PlaceRange& range : ranges_) {
        if (place < range.end) return before + std::max<int64_t>(0, place - range.begin);
        before += range.count();
    }
    return count_ - 1;
}

std::vector<PlaceRange> common(const std::vector<PlaceRange>& a, const std::vector<PlaceRange>& b) {
    std::vector<PlaceRange> both;
    for (const PlaceRange& x : a) {
        for (const PlaceRange& y : b) {
            const PlaceRange places{std::max(x.begin, y.begin), std::min(x.end, y.end)};
            if (places.count() > 0) both.push_back(places);
        }
    }
    return both;
}

}  // namespace speedrun
