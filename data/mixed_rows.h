// Rows of a mixture of sources.
#pragma once

#include <memory>
#include <vector>

#include "data/mixture_order.h"
#include "data/row_source.h"

namespace speedrun {

// Row r is row first_row + r of the run. It is the next row of its source (MixtureOrder): each source has rows of its own, in
// its own order and epochs.
class MixedRows final : public RowSource {
  public:
    // sources: by number; their row 0 is the first one from first_row on.
    MixedRows(std::shared_ptr<const MixtureOrder> order,
              std::vector<std::unique_ptr<const RowSource>> sources, int64_t first_row);

    // Epoch of the row's source.
    int64_t epoch(int64_t row) const override;
    // Sums over the sources.
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::span<uint16_t> tokens) const override;
    std::string describe() const override;

  private:
    struct Place {
        const RowSource* source;
        int64_t row;
    };
    Place place_of(int64_t row) const;

    const std::shared_ptr<const MixtureOrder> order_;
    const std::vector<std::unique_ptr<const RowSource>> sources_;
    const int64_t first_row_;
};

}  // namespace speedrun
