#include "train/model/nodes/key_travel.h"

namespace speedrun {

KeyTravel::KeyTravel(const SharedKeys& keys)
    : keys_(keys), own_(chunks_of(keys.part, keys.row.sequence_length)) {}

int64_t KeyTravel::token_of(int64_t row, int64_t place) const {
    const int64_t S = keys_.row.sequence_length, K = keys_.part.chunk_length(S);
    const bool front = place / K == keys_.part.index;
    return row * keys_.part.local_length(S) + place % K + (front ? 0 : K);
}

void KeyTravel::send_to(int member) {
    const std::vector<PlaceRange> seen = common(own_, KeptKeys(keys_.part.of(member), keys_.row).ranges());
    std::vector<Home>& homes = homes_.emplace_back();
    for (int64_t row = 0; row < keys_.rows; ++row) {
        for (const PlaceRange& places : seen) {
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
        for (const PlaceRange& places : theirs) {
            const int64_t key = row * kept.count() + kept.below(places.begin);
            fetch_.receives.push_back({member, key * keys_.columns, places.count() * keys_.columns});
            bring_.sends.push_back({member, key * keys_.columns, places.count() * keys_.columns});
        }
    }
}

}  // namespace speedrun
