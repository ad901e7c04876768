// RegionLayout: how parameters lie in memory, cut into the regions that are reduced, stepped and gathered as
// one.
//
// A region is a contiguous piece of the gradient memory, and the same piece of the compute copies, of `parts`
// equal parts, one per rank that shards the optimizer; what the last parts lack is padding, which is zero and
// stays zero.
//   one parameter   cut along dimension 0
//   small ones      of one unit and optimizer group together, cut anywhere
//   a bank          for optimizers of whole matrices: `parts` matrices of one shape, a whole one per part.
//                   A stack (q, k, v) may belong to several banks, which then lie one after the other.
//   one matrix      of a stack, cut by rows, where such optimizers exchange rows (cut_matrices)
// With one part, every parameter is a region of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/model/parameter_table.h"

namespace speedrun {

// When ranks that store only their parts of the parameters free what they have gathered: not before the
// step, after forward, or after forward but for what backward reads first.
enum class Reshard : uint8_t { no, yes, except_last };

struct RegionRules {
    int parts = 1, index = 0;  // ranks that share the optimizer state, and which of them this one is
    int matrix_parts = 0, matrix_index = 0;  // the same for optimizers of whole matrices; 0 parts: as above
    std::vector<int> group_of;               // optimizer group by parameter id; empty: all in one
    std::vector<bool> whole_matrix;          // by group: its optimizer needs whole matrices; empty: none does
    bool cut_matrices = false;               // such optimizers get rows too, and exchange them
    int64_t coalesce_below = 16384;          // elements: smaller parameters share a region of their unit
    std::optional<Reshard> stored_in_parts;  // parameters: each rank stores its parts alone and gathers
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
    int parts = 1, index = 0;     // ranks that share its optimizer state, and which of them this one is
    int64_t part = 0;             // elements of each part
    bool begins_cluster = true;   // no parameter lies in this region and the one before
    int64_t rows = 0, cols = 0;   // of its matrices; 0: not of matrices
    std::vector<Piece> pieces;    // ascending

    int64_t first_parameter() const { return pieces.front().parameter->id; }
    std::string name()
        const;  // "blocks.0.attn.qkv.weight", "5 small parameters from blocks.0.attn_norm.gain"
};

// Matrices of one shape whose rows are cut among ranks that exchange them (RegionRules::cut_matrices).
struct MatrixFamily {
    int group = 0;
    int64_t rows = 0, cols = 0;
    int64_t count = 0;
    int64_t block = 0;  // elements of the largest piece that a rank holds of one of them

    int64_t banks(int parts) const { return (count + parts - 1) / parts; }  // of a matrix per rank
};

class RegionLayout {
  public:
    // The table must outlive the layout.
    RegionLayout(const ParameterTable& table, const RegionRules& rules);

    const RegionRules& rules() const { return rules_; }
    int num_units() const { return table_.num_units(); }
    // Do ranks hold different parts of the optimizer's state?
    bool sharded() const;
    const std::vector<Region>& all() const { return regions_; }
    const Region& operator[](int id) const { return regions_[static_cast<size_t>(id)]; }
    int size() const { return static_cast<int>(regions_.size()); }
    int64_t elements() const { return elements_; }  // of the gradient memory
    int64_t padded(const Region& region) const { return region.part * region.parts; }
    // Elements of this rank's part that are not padding.
    int64_t valid(const Region& region) const;
    // What lies in this rank's part; in_region counts from the part's begin.
    std::vector<Piece> part_pieces(const Region& region) const;
    // Where a parameter begins, in elements; it is contiguous.
    int64_t offset_of(const Parameter& p) const { return offset_of_[static_cast<size_t>(p.id)]; }
    const std::vector<int>& regions_of(const Parameter& p) const {
        return regions_of_[static_cast<size_t>(p.id)];
    }
    // Elements of the matrix at `first` of a region that part `index` of it holds: begin in the region,
    // count.
    std::pair<int64_t, int64_t> rows_in_part(const Region& region, int64_t first, int index) const;
    // With cut_matrices: by group and shape, smaller first.
    std::vector<MatrixFamily> matrix_families() const;
    // Regions in the order in which backward completes them: from the last declared to the first.
    std::vector<int> backward_order() const;

  private:
    int group_of(const Parameter& p) const;
    int matrix_parts() const;
    bool whole_matrix(int group) const;
    Region& add(const Parameter& first, bool aligned);
    void add_alone(const Parameter& p);
    void add_small(const std::vector<const Parameter*>& members);
    void add_bank(const std::vector<const Parameter*>& members);
    void add_by_matrix(const Parameter& p);

    const ParameterTable& table_;
    const RegionRules rules_;
    std::vector<Region> regions_;
    std::vector<int64_t> offset_of_;
    std::vector<std::vector<int>> regions_of_;
    int64_t elements_ = 0;
};

}  // namespace speedrun
