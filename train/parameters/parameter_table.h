// ParameterTable: the model declares each parameter once; optimizers, sharding, checkpoints, plan and initialization
// iterate the table. Needs no device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/parameters/dimension.h"
#include "train/parameters/tensor_cut.h"

namespace speedrun {

using ParameterId = int;  // index in the ParameterTable
constexpr ParameterId kNoParameter = -1;

// Initial values of a parameter. Random values use the counter-based generator, keyed by the parameter's id.
struct InitRule {
    enum class Kind : uint8_t { constant, elements, normal, uniform } kind = Kind::constant;
    float value = 0;                   // constant, standard deviation, or bound
    std::vector<float> elements = {};  // values of all elements
};

// Use of a parameter by the nodes of one unit.
struct UnitUse {
    int unit = 0;
    bool in_backward = false;  // backward reads its value; lookups in a table do not
    bool operator==(const UnitUse&) const = default;
};

// The rows of a parameter's first `stacks` stacks (q and k, not v) are grouped into `heads` heads, over all parts.
struct HeadRows {
    int64_t stacks = 0, heads = 0;
};

struct Parameter {
    int id = 0;  // index in the table
    std::string name;
    std::vector<int64_t> shape;  // this tensor rank's part
    TensorCut cut;               // location of the part in the whole parameter
    InitRule init;
    std::string meaning;  // displayed formula that uses it
    HeadRows head_rows = {};
    std::vector<Dimension> dimensions;  // one per entry of `shape`
    // Dimensions over which its gradient sums, without its own.
    DimensionSet summed{Dimension::tokens};
    bool full_precision = false;  // computed in f32: vectors and scalars
    // Id of the parameter that this one copies, with optimizer state, at the first stage that uses it. Unused
    // before that stage. −1: used in all stages.
    int copy_of = -1;
    // Ids per token that look up rows, if ranks exchange the gradient as rows; 0: the whole gradient is reduced.
    int64_t row_ids = 0;
    std::vector<UnitUse> uses{{}};  // in order of units, at least one

    int64_t numel() const;
    std::vector<int64_t> whole_shape() const;
    int64_t whole_numel() const;
    std::vector<Box> boxes(const Range& in_slice) const { return boxes_of(shape, cut, in_slice); }
    int unit() const { return uses.front().unit; }  // first unit, in which its gradient is complete
    bool is_matrix() const { return shape.size() == 2; }

    // Returns the rows of each stack, or of this rank's part of it. A stack is a separate matrix for a matrix optimizer.
    std::vector<int64_t> stacks() const { return cut.stacks.empty() ? std::vector{shape[0]} : cut.stacks; }

    // Rows of a separate matrix for a matrix optimizer, or this rank's part. If a matrix's heads may be on two ranks,
    // the part covers several matrices, which are equal blocks of rows once all parts are together.
    struct RowBlock {
        Range rows;
        int64_t matrices = 1;
    };
    // Returns all blocks in order. heads: heads per matrix where rows are grouped by head, a divisor of their number;
    // 0: all.
    std::vector<RowBlock> row_blocks(int64_t heads) const;
};

// Delayed scaling: scale of the next step = factor * amax of this step.
struct KeptScale {
    std::string name;  // name of the scaled tensor: "blocks.0.mlp.up.x"
    float factor = 1;
    int64_t exact_steps = 0;  // steps with current scaling at the start of the run

    bool operator==(const KeptScale&) const = default;
};

class ParameterTable {
  public:
    // tensor_index: this rank's part of split parameters.
    ParameterTable() = default;
    explicit ParameterTable(int tensor_index) : tensor_index_(tensor_index) {}

    // Returns the id. Throws a usage error if the name is taken.
    int declare(std::string name, const std::vector<Extent>& extents, InitRule init);
    void set_head_rows(int id, const HeadRows& rows) {
        parameters_[static_cast<size_t>(id)].head_rows = rows;
    }
    // Sets the displayed meaning, one line.
    void explain(int id, std::string meaning) {
        parameters_[static_cast<size_t>(id)].meaning = std::move(meaning);
    }
    // Sets the uses found in the model's graph. Throws an internal error for an empty list or units out of order.
    void set_uses(int id, std::vector<UnitUse> uses);
    void set_summed(int id, const DimensionSet& summed) {
        parameters_[static_cast<size_t>(id)].summed = summed;
    }
    // The shapes must be equal.
    void set_copy_of(int id, int source) { parameters_[static_cast<size_t>(id)].copy_of = source; }
    void add_row_ids(int id) { ++parameters_[static_cast<size_t>(id)].row_ids; }
    // Returns its index among scales().
    int declare_scale(KeptScale scale) {
        scales_.push_back(std::move(scale));
        return static_cast<int>(scales_.size()) - 1;
    }
    void set_num_units(int num_units) { num_units_ = num_units; }

    const std::vector<Parameter>& all() const { return parameters_; }
    const Parameter& operator[](int id) const { return parameters_[id]; }
    int size() const { return static_cast<int>(parameters_.size()); }
    int num_units() const { return num_units_; }
    const std::vector<KeptScale>& scales() const { return scales_; }
    int64_t numel() const;  // this rank's parts
    int64_t whole_numel() const;
    // Returns the parameter of this name; throws if there is none.
    const Parameter& find(const std::string& name) const;
    bool contains(const std::string& name) const;

  private:
    int tensor_index_ = 0;
    std::vector<Parameter> parameters_;
    std::vector<KeptScale> scales_;
    int num_units_ = 0;
};

}  // namespace speedrun
