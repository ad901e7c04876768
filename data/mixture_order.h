// Order of a mixture: the source of each row of a run, computed from the row's number alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace speedrun {

// Row r of a run is from source k if x(r) is in the interval of k. The intervals cut [0, 1) in proportion to the weights. x is
// the van der Corput sequence in base 2 (the bits of r reversed after the point), with a digital shift by the seed. The
// first n rows contain the share of each source up to about log2(n) rows. A count of rows is a sum over the bits of n.
class MixtureOrder {
  public:
    // At least one weight, each positive and finite.
    MixtureOrder(const std::vector<double>& weights, uint64_t seed);

    int num_sources() const { return static_cast<int>(ends_.size()); }
    double share(int source) const;  // share of all rows
    int source_of(int64_t row) const;
    // Returns the number of this source's rows before `row`.
    int64_t rows_before(int source, int64_t row) const;

  private:
    uint64_t begin_of(int source) const { return source == 0 ? 0 : ends_[static_cast<size_t>(source) - 1]; }
    uint64_t position(int64_t row) const;
    // Returns the number of rows before `row` with a position below `end`.
    int64_t count_below(int64_t row, uint64_t end) const;

    std::vector<uint64_t> ends_;  // end of each source's interval, in units of 2^-62
    uint64_t shift_ = 0;
};

}  // namespace speedrun
