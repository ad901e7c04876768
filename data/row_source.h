// Which tokens of a dataset the rows of training hold. Rows are counted from 0 through all epochs, and each is
// a pure function of its number and the options: whoever asks, in whatever order, gets the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace speedrun {

// What becomes of the dataset's tokens in an epoch: seen and dropped are all of them.
struct EpochCounts {
    int64_t rows = 0;
    int64_t tokens_seen = 0;     // in a row, as input or as target
    int64_t tokens_dropped = 0;  // in no row
};

// Safe to read from many threads.
class RowSource {
  public:
    virtual ~RowSource() = default;
    virtual int64_t epoch(int64_t row) const = 0;
    virtual EpochCounts counts(int64_t epoch) const = 0;
    // Fills `tokens`, S+1 of them, with the row's S inputs and its last target. Throws a data error at a token outside the
    // vocabulary and for a shard that changed.
    virtual void read(int64_t row, std::span<uint16_t> tokens) const = 0;
    // For the log: what the rows of the first epoch are made of.
    virtual std::string describe() const = 0;
};

}  // namespace speedrun
