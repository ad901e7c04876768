#include "data/kept_keys.h"

#include <algorithm>

namespace speedrun {

std::vector<PositionRange> chunks_of(const ContextSlice& part, int64_t sequence_length) {
    if (part.size == 1) return {{0, sequence_length}};
    const int64_t K = part.chunk_length(sequence_length);
    std::vector<PositionRange> chunks;
    for (const int chunk : {part.index, 2 * part.size - 1 - part.index}) {
        const PositionRange places{std::min(chunk * K, sequence_length),
                                   std::min((chunk + 1) * K, sequence_length)};
        if (places.count() > 0) chunks.push_back(places);
    }
    return chunks;
}

namespace {

// first_keys: first key of each chunk of the row; empty: 0.
std::vector<PositionRange> ranges_of(const ContextSlice& part, const AttendedRow& row,
                                     std::span<const int32_t> first_keys) {
    std::vector<PositionRange> ranges;
    for (const PositionRange& chunk : chunks_of(part, row.sequence_length)) {
        const auto number = static_cast<size_t>(chunk.begin / part.chunk_length(row.sequence_length));
        const int64_t document = first_keys.empty() ? 0 : first_keys[number],
                      oldest = row.window > 0 ? chunk.begin - row.window + 1 : 0,
                      begin = std::max(document, oldest);
        if (!ranges.empty() && begin <= ranges.back().end) {
            ranges.back().end = chunk.end;
        } else {
            ranges.push_back({begin, chunk.end});
        }
    }
    return ranges;
}

}  // namespace

KeptKeys::KeptKeys(const ContextSlice& part, const AttendedRow& row)
    : part_(part), row_(row), ranges_(ranges_of(part, row, {})) {
    for (const PositionRange& range : ranges_) count_ += range.count();
}

int64_t KeptKeys::below(int64_t place) const {
    int64_t before = 0;
    for (const PositionRange& range : ranges_) {
        if (place < range.end) return before + std::max<int64_t>(0, place - range.begin);
        before += range.count();
    }
    return before;
}

KeptKeys::Visible KeptKeys::visible(int64_t place, int64_t first_key) const {
    const int64_t oldest = row_.window > 0 ? place - row_.window + 1 : 0;
    return {below(std::max(first_key, oldest)), below(place + 1) - 1};
}

int64_t KeptKeys::visible_pairs() const {
    int64_t pairs = 0;
    for (const PositionRange& chunk : chunks_of(part_, row_.sequence_length)) {
        for (int64_t place = chunk.begin; place < chunk.end; ++place) {
            const Visible visible_there = visible(place, 0);
            pairs += visible_there.last - visible_there.first + 1;
        }
    }
    return pairs;
}

std::vector<PositionRange> needed_keys(const ContextSlice& part, const AttendedRow& row,
                                       std::span<const int32_t> chunk_first_keys) {
    return ranges_of(part, row, chunk_first_keys);
}

std::vector<PositionRange> without(const std::vector<PositionRange>& a, const std::vector<PositionRange>& b) {
    std::vector<PositionRange> rest;
    for (const PositionRange& x : a) {
        int64_t begin = x.begin;
        for (const PositionRange& y : common({x}, b)) {
            if (begin < y.begin) rest.push_back({begin, y.begin});
            begin = y.end;
        }
        if (begin < x.end) rest.push_back({begin, x.end});
    }
    return rest;
}

std::vector<PositionRange> common(const std::vector<PositionRange>& a, const std::vector<PositionRange>& b) {
    std::vector<PositionRange> both;
    for (const PositionRange& x : a) {
        for (const PositionRange& y : b) {
            const PositionRange places{std::max(x.begin, y.begin), std::min(x.end, y.end)};
            if (places.count() > 0) both.push_back(places);
        }
    }
    return both;
}

}  // namespace speedrun
