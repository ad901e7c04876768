#include "data/columns/column.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

void index_rows(Batch& batch, const BatchLayout& layout) {
    const int64_t S = layout.sequence_length;
    batch.positions.resize(batch.tokens.size());
    batch.first_key.resize(batch.tokens.size());
    int32_t first_key = 0;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
        const int64_t position = static_cast<int64_t>(t) % S;
        if (position == 0 || batch.tokens[t] == layout.separator) first_key = static_cast<int32_t>(t);
        batch.positions[t] = static_cast<int32_t>(position);
        batch.first_key[t] = first_key;
    }
}

// Returns the first key of every chunk of every row, as a position in the row.
std::vector<int32_t> first_keys_of_chunks(const Batch& batch, const BatchLayout& layout) {
    const int64_t S = layout.sequence_length, rows = static_cast<int64_t>(batch.tokens.size()) / S;
    std::vector<int32_t> first_keys;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t chunk = 0; chunk < 2 * int64_t{layout.part.size}; ++chunk) {
            const int64_t first = std::min(chunk * layout.part.chunk_length(S), S - 1);
            first_keys.push_back(
                static_cast<int32_t>(batch.first_key[static_cast<size_t>(row * S + first)] - row * S));
        }
    }
    return first_keys;
}

void cut_to_part(Batch& batch, std::span<const Column> columns, const BatchLayout& layout) {
    const int64_t S = layout.sequence_length;
    batch.chunk_first_keys = first_keys_of_chunks(batch, layout);
    const auto cut = [&](std::vector<int32_t>& values, int64_t padding, int64_t padding_by_row = 0) {
        layout.part.cut(values, {.sequence_length = S, .padding = padding, .padding_by_row = padding_by_row});
    };
    cut(batch.tokens, 0);
    cut(batch.targets, -1);
    cut(batch.positions, S - 1);
    cut(batch.first_key, S - 1, S);
    for (const Column& column : columns)
        if (column.compute && !column.after_cut) cut(batch.columns[column.name], column.padding);
}

}  // namespace

const Column::Values& Column::of(const Batch& batch) const {
    if (member != nullptr) return batch.*member;
    const auto found = batch.columns.find(name);
    if (found == batch.columns.end()) throw_internal("a batch without the column '{}'", name);
    return found->second;
}

void complete(Batch& batch, std::span<const Column> columns, const BatchLayout& layout) {
    const ContextSlice& part = layout.part;
    if (part.size < 1 || part.index < 0 || part.index >= part.size)
        throw_internal("part {} of {} of a row", part.index, part.size);
    const auto S = layout.sequence_length, tokens = static_cast<int64_t>(batch.tokens.size());
    if (S < 1 || tokens % S != 0) throw_internal("{} tokens are not whole rows of {}", tokens, S);
    if (batch.first_key.empty()) index_rows(batch, layout);
    std::erase_if(batch.columns, [&](const auto& stored) {
        return std::none_of(columns.begin(), columns.end(),
                            [&](const Column& column) { return column.name == stored.first; });
    });
    const auto compute = [&](bool after_cut) {
        for (const Column& column : columns)
            if (column.compute && column.after_cut == after_cut)
                column.compute(batch.columns[column.name], batch, layout);
    };
    compute(false);
    if (part.size > 1) cut_to_part(batch, columns, layout);
    compute(true);
    batch.valid_targets =
        std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t != -1; });
}

}  // namespace speedrun
