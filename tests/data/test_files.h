// Helpers of the data tests: small files, and checks of error messages.
#pragma once

#include <numeric>

#include "data/batch_loader.h"
#include "data/shard.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"

namespace speedrun {

// Writes a shard with these tokens and returns its path.
inline std::string write_tokens(const std::string& path, const std::vector<uint16_t>& tokens) {
    write_shard(path, tokens);
    return path;
}

// Returns first, first+1, …: each token determines its position.
inline std::vector<uint16_t> counting_tokens(int count, int first = 0) {
    std::vector<uint16_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), static_cast<uint16_t>(first));
    return tokens;
}

inline Batch fill(const BatchLoader& loader, int64_t step, RowRange rows) {
    Batch batch;
    loader.fill(step, rows, batch);
    return batch;
}

}  // namespace speedrun
