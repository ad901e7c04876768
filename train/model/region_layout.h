// RegionLayout: how parameters lie in memory, cut into the regions that are reduced, stepped and gathered as
// one.
//
// A region is a contiguous piece of the gradient memory, and the same piece of the compute copies, of `parts`
// equal parts, one per rank that shards the optimizer; what the last parts lack is padding, which is zero and
// stays zero.
//   one parameter   cut along dimension 0
//   small ones      of one unit and optimizer group together, cut anywhere
//   a bank          for optimizers of whole matrices: `parts` matrices of one shape, a whole one per part.
//   Matrices of
//                   one shape lie one after the other, so that a stack (q, k, v) may belong to several
//                   regions.
// With one part, every parameter is a region of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/model/parameter_table.h"

namespace speedrun {

struct RegionRules {
    int parts = 1, index = 0;        // ranks that share the optimizer state, and which of them this one is
    std::vector<int> group_of;       // optimizer group by parameter id; empty: all in one
    std::vector<bool> whole_matrix;  // by group: its optimizer needs whole matrices; empty: none does
    int64_t coalesce_below = 16384;  // elements: smaller parameters share a region of their unit
};

// `count` elements of a parameter from `in_parameter` on, at `in_region` of a region (or of a part of one).
struct Piece {
    const Parameter* parameter;
    int64_t in_parameter, in_region, count;
};

struct Region {
    int id = 0;
    int group = 0;
    bool full_precision = false;  // computed with in f32
    int64_t offset = 0;           // elements, in the gradient memory
    int64_t count = 0;            // elements, without the padding at the end
    int64_t part = 0;             // elements of each part
    int64_t rows = 0, cols = 0;   // of its matrices; 0: not of matrices
    std::vector<Piece> pieces;    // ascending

    int64_t first_parameter() const { return pieces.front().parameter->id; }
    std::string name()
        const;  // "blocks.0.attn.qkv.weight", "5 small parameters from blocks.0.attn_norm.gain"
};

class RegionLayout {
  public:
    // The table must outlive the layout.
    RegionLayout(const ParameterTable& table, const RegionRules& rules);

    int parts() const { return rules_.parts; }
    int index() const { return rules_.index; }
    const std::vector<Region>& all() const { return regions_; }
    const Region& operator[](int id) const { return regions_[static_cast<size_t>(id)]; }
    int size() const { return static_cast<int>(regions_.size()); }
    int64_t elements() const { return elements_; }  // of the gradient memory
    int64_t padded(const Region& region) const { return region.part * rules_.parts; }
    // Elements of this rank's part that are not padding.
    int64_t valid(const Region& region) const;
    // What lies in this rank's part; in_region counts from the part's begin.
    std::vector<Piece> part_pieces(const Region& region) const;
    // Where a parameter begins, in elements; it is contiguous.
    int64_t offset_of(const Parameter& p) const { return offset_of_[static_cast<size_t>(p.id)]; }
    const std::vector<int>& regions_of(const Parameter& p) const {
        return regions_of_[static_cast<size_t>(p.id)];
    }
    // Regions in the order in which backward completes them: from the last declared to the first.
    std::vector<int> backward_order() const;

  private:
    int group_of(const Parameter& p) const;
    bool whole_matrix(int group) const;
    Region& add(const Parameter& first, bool aligned);
    void add_alone(const Parameter& p);
    void add_small(const std::vector<const Parameter*>& members);
    void add_bank(const std::vector<const Parameter*>& members);

    const ParameterTable& table_;
    const RegionRules rules_;
    std::vector<Region> regions_;
    std::vector<int64_t> offset_of_;
    std::vector<std::vector<int>> regions_of_;
    int64_t elements_ = 0;
};

}  // namespace speedrun
