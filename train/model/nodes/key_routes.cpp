#include "train/model/nodes/key_routes.h"

#include "kernels/device/error.h"

namespace speedrun {

KeyRoutes::KeyRoutes(const SharedKeys& keys, const std::vector<int32_t>& documents)
    : keys_(keys), documents_(documents), own_(chunks_of(keys.part, keys.row.sequence_length)) {
    const int64_t chunks = 2 * int64_t{keys.part.size};
    if (!documents.empty() && static_cast<int64_t>(documents.size()) != keys.rows * chunks)
        throw_internal("first keys of {} chunks, for {} rows of {}", documents.size(), keys.rows, chunks);
}

std::vector<PositionRange> KeyRoutes::needed_by(const ContextSlice& part, int64_t row) const {
    const auto chunks = static_cast<size_t>(2 * keys_.part.size);
    std::span<const int32_t> first_keys = documents_;
    if (!first_keys.empty()) first_keys = first_keys.subspan(static_cast<size_t>(row) * chunks, chunks);
    return needed_keys(part, keys_.row, first_keys);
}

int64_t KeyRoutes::token_of(int64_t row, int64_t place) const {
    const int64_t S = keys_.row.sequence_length, K = keys_.part.chunk_length(S);
    const bool front = place / K == keys_.part.index;
    return row * keys_.part.local_length(S) + place % K + (front ? 0 : K);
}

void KeyRoutes::send_to(int member) {
    std::vector<GradientRange>& gradient_ranges = gradient_ranges_.emplace_back();
    for (int64_t row = 0; row < keys_.rows; ++row) {
        for (const PositionRange& places : common(own_, needed_by(keys_.part.of(member), row))) {
            const int64_t token = token_of(row, places.begin), count = places.count();
            fetch_.sends.push_back({member, token * keys_.columns, count * keys_.columns});
            send_back_.receives.push_back({member, received_rows_ * keys_.columns, count * keys_.columns});
            const bool joins = !gradient_ranges.empty() &&
                               gradient_ranges.back().token + gradient_ranges.back().count == token;
            if (joins) {
                gradient_ranges.back().count += count;
            } else {
                gradient_ranges.push_back({token, received_rows_, count});
            }
            received_rows_ += count;
        }
    }
}

void KeyRoutes::receive_from(int member, const KeptKeys& kept) {
    const std::vector<PositionRange> theirs =
        common(chunks_of(keys_.part.of(member), keys_.row.sequence_length), kept.ranges());
    for (int64_t row = 0; row < keys_.rows; ++row) {
        const std::vector<PositionRange> needed = common(theirs, needed_by(keys_.part, row));
        const auto key_at = [&](const PositionRange& places) {
            return row * kept.count() + kept.below(places.begin);
        };
        for (const PositionRange& places : without(theirs, needed))
            absent_.push_back({key_at(places), places.count()});
        for (const PositionRange& places : needed) {
            const int64_t key = key_at(places);
            fetch_.receives.push_back({member, key * keys_.columns, places.count() * keys_.columns});
            send_back_.sends.push_back({member, key * keys_.columns, places.count() * keys_.columns});
        }
    }
}

}  // namespace speedrun
