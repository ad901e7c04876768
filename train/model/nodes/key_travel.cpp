#include "train/model/nodes/key_travel.h"

#include "kernels/device/error.h"

namespace speedrun {

KeyTravel::KeyTravel(const SharedKeys& keys, const std::vector<int32_t>& documents)
    : keys_(keys), documents_(documents), own_(chunks_of(keys.part, keys.row.sequence_length)) {
    const int64_t chunks = 2 * int64_t{keys.part.size};
    if (!documents.empty() && static_cast<int64_t>(documents.size()) != keys.rows * chunks)
        throw_internal("first keys of {} chunks, for {} rows of {}", documents.size(), keys.rows, chunks);
}

std::vector<PlaceRange> KeyTravel::needed_by(const ContextPart& part, int64_t row) const {
    const auto chunks = static_cast<size_t>(2 * keys_.part.size);
    std::span<const int32_t> first_keys = documents_;
    if (!first_keys.empty()) first_keys = first_keys.subspan(static_cast<size_t>(row) * chunks, chunks);
    return needed_keys(part, keys_.row, first_keys);
}

int64_t KeyTravel::token_of(int64_t row, int64_t place) const {
    const int64_t S = keys_.row.sequence_length, K = keys_.part.chunk_length(S);
    const bool front = place / K == keys_.part.index;
    return row * keys_.part.local_length(S) + place % K + (front ? 0 : K);
}

void KeyTravel::send_to(int member) {
    std::vector<Home>& homes = homes_.emplace_back();
    for (int64_t row = 0; row < keys_.rows; ++row) {
        for (const PlaceRange& places : common(own_, needed_by(keys_.part.of(member), row))) {
            const int64_t token = token_of(row, places.begin), count = places.count();
            fetch_.sends.push_back({member, token * keys_.columns, count * keys_.columns});
            bring_.receives.push_back({member, came_rows_ * keys_.columns, count * keys_.columns});
            const bool joins = !homes.empty() && homes.back().token + homes.back().count == token;
            if (joins) {
                homes.back().count += count;
            } else {
                homes.push_back({token, came_rows_, count});
            }
            came_rows_ += count;
        }
    }
}

void KeyTravel::receive_from(int member, const KeptKeys& kept) {
    const std::vector<PlaceRange> theirs =
        common(chunks_of(keys_.part.of(member), keys_.row.sequence_length), kept.ranges());
    for (int64_t row = 0; row < keys_.rows; ++row) {
        const std::vector<PlaceRange> needed = common(theirs, needed_by(keys_.part, row));
        const auto key_at = [&](const PlaceRange& places) {
            return row * kept.count() + kept.below(places.begin);
        };
        for (const PlaceRange& places : without(theirs, needed))
            absent_.push_back({key_at(places), places.count()});
        for (const PlaceRange& places : needed) {
            const int64_t key = key_at(places);
            fetch_.receives.push_back({member, key * keys_.columns, places.count() * keys_.columns});
            bring_.sends.push_back({member, key * keys_.columns, places.count() * keys_.columns});
        }
    }
}

}  // namespace speedrun
