#include "data/context_part.h"

#include <algorithm>
#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

std::vector<int64_t> ContextPart::places(int64_t sequence_length) const {
    std::vector<int64_t> all;
    const int64_t K = chunk_length(sequence_length), behind = 2 * int64_t{size} - 1 - index;
    for (int64_t i = 0; i < local_length(sequence_length); ++i) {
        const int64_t place = size == 1 ? i : (i < K ? index : behind) * K + i % K;
        all.push_back(place < sequence_length ? place : -1);
    }
    return all;
}

void take_part(Batch& batch, int64_t sequence_length, const ContextPart& part) {
    if (part.size < 1 || part.index < 0 || part.index >= part.size)
        throw_internal("part {} of {} of a row", part.index, part.size);
    if (part.size == 1) return;
    const auto S = sequence_length, tokens = static_cast<int64_t>(batch.tokens.size());
    if (S < 1 || tokens % S != 0) throw_internal("{} tokens are no rows of {}", tokens, S);
    const int64_t rows = tokens / S, local = part.local_length(S);
    const std::vector<int64_t> places = part.places(S);
    const auto cut = [&](std::vector<int32_t>& values, const auto& padding) {
        std::vector<int32_t> taken;
        taken.reserve(static_cast<size_t>(rows * local));
        for (int64_t row = 0; row < rows; ++row) {
            for (const int64_t place : places) {
                taken.push_back(place < 0 ? static_cast<int32_t>(padding(row))
                                          : values[static_cast<size_t>(row * S + place)]);
            }
        }
        values = std::move(taken);
    };
    const auto number = [](int64_t value) { return [value](int64_t) { return value; }; };
    cut(batch.tokens, number(0));
    if (!batch.targets.empty()) cut(batch.targets, number(-1));
    cut(batch.positions, number(S - 1));
    batch.chunk_first_keys.clear();
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t chunk = 0; chunk < 2 * int64_t{part.size}; ++chunk) {
            const int64_t first = std::min(chunk * part.chunk_length(S), S - 1);
            batch.chunk_first_keys.push_back(
                static_cast<int32_t>(batch.first_key[static_cast<size_t>(row * S + first)] - row * S));
        }
    }
    cut(batch.first_key, [S](int64_t row) { return row * S + S - 1; });
    for (std::vector<int32_t>& ids : batch.ngrams) cut(ids, number(0));
    if (!batch.sign_rows.empty()) cut(batch.sign_rows, number(0));
    for (std::vector<int32_t>& targets : batch.further_targets) cut(targets, number(-1));
    batch.valid_targets =
        std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t != -1; });
}

}  // namespace speedrun
