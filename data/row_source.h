// Rows of training as ranges of a dataset's tokens. Rows are numbered from 0 over all epochs. Each row is a pure
// function of its number and the options, for any rank and order of reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace speedrun {

// Use of the dataset's tokens in an epoch. tokens_seen and tokens_dropped sum to all tokens.
struct EpochCounts {
    int64_t rows = 0;
    int64_t tokens_seen = 0;     // in a row, as input or target
    int64_t tokens_dropped = 0;  // in no row
};

// Safe for concurrent reads.
class RowSource {
  public:
    virtual ~RowSource() = default;
    virtual int64_t epoch(int64_t row) const = 0;
    virtual EpochCounts counts(int64_t epoch) const = 0;
    // Fills `tokens` (S+1) with the row's S inputs and its last target. Throws a data error for a token outside the
    // vocabulary, or for a shard that changed.
    virtual void read(int64_t row, std::span<uint16_t> tokens) const = 0;
    // Describes the rows of the first epoch, for the log.
    virtual std::string describe() const = 0;
};

}  // namespace speedrun
