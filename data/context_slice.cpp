#include "data/context_slice.h"

#include <cstddef>
#include <utility>

namespace speedrun {

std::vector<int64_t> ContextSlice::places(int64_t sequence_length) const {
    std::vector<int64_t> all;
    const int64_t K = chunk_length(sequence_length), second = 2 * int64_t{size} - 1 - index;
    for (int64_t i = 0; i < local_length(sequence_length); ++i) {
        const int64_t place = size == 1 ? i : (i < K ? index : second) * K + i % K;
        all.push_back(place < sequence_length ? place : -1);
    }
    return all;
}

void ContextSlice::cut(std::vector<int32_t>& values, const Cut& how) const {
    const int64_t S = how.sequence_length, rows = static_cast<int64_t>(values.size()) / S;
    const std::vector<int64_t> taken_places = places(S);
    std::vector<int32_t> taken;
    taken.reserve(static_cast<size_t>(rows) * taken_places.size());
    for (int64_t row = 0; row < rows; ++row)
        for (const int64_t place : taken_places)
            taken.push_back(place < 0 ? static_cast<int32_t>(how.padding + row * how.padding_by_row)
                                      : values[static_cast<size_t>(row * S + place)]);
    values = std::move(taken);
}

}  // namespace speedrun
