// The one parameter table: the model declares each parameter once, and optimizers, sync, checkpoint, plan and
// initialisation iterate it. Needs no device.
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

// How a parameter's values start. Random ones come from the counter-based generator, keyed by the parameter's
// id.
struct InitRule {
    enum class Kind : uint8_t { constant, elements, normal, uniform } kind = Kind::constant;
    float value = 0;                   // the constant, the deviation or the bound
    std::vector<float> elements = {};  // in the order of the whole parameter
};

// The nodes of one unit of the model's graph use a parameter.
struct UnitUse {
    int unit = 0;
    bool in_backward = false;  // backward reads its values too; look-ups in a table do not
    bool operator==(const UnitUse&) const = default;
};

// The first matrices of a stack, each of whose rows, all parts of it together, are those of so many heads, one after the
// other (q and k, not v).
struct HeadRows {
    int64_t stacks = 0, heads = 0;
};

struct Parameter {
    int id = 0;  // index in the table
    std::string name;
    std::vector<int64_t> shape;  // of what this rank of the tensor axis has
    TensorCut cut;               // that it is of the whole parameter
    InitRule init;
    std::string meaning;   // for people: the formula that it stands in
    int64_t matrices = 1;  // stacked along dimension 0 that a matrix optimizer treats apart (q, k, v: 3)
    HeadRows head_rows = {};
    std::vector<Dimension> dimensions;  // what those of `shape` count
    // What its gradient sums over and it lacks itself.
    DimensionSet summed{Dimension::tokens};
    bool full_precision = false;  // computed with in f32: vectors and scalars
    // The id of the parameter of whose values and optimizer state these begin as a copy, in the first stage of the run that
    // uses them; until then this one rests. −1: it is used in all stages.
    int copy_of = -1;
    // How many ids of rows each token gives this table, if ranks exchange its gradient as rows; 0: it travels whole.
    int64_t row_ids = 0;
    std::vector<UnitUse> uses{{}};  // in order of units, one at least

    int64_t numel() const;
    std::vector<int64_t> whole_shape() const;
    int64_t whole_numel() const;
    std::vector<Box> boxes(const PartRange& range) const { return boxes_of(shape, cut, range); }
    int unit() const { return uses.front().unit; }  // the first, in which its gradient is complete
    bool is_matrix() const { return shape.size() == 2; }

    // Some of its rows: a matrix that a matrix optimizer treats apart, or this rank's part of one or, where heads that are
    // one matrix may be on two ranks, of several, which are equal blocks of rows once all parts are together.
    struct RowBlock {
        int64_t first, rows;
        int64_t matrices = 1;
    };
    // All of them, in order. heads: of one matrix where rows are those of heads, a divisor of their number; 0: all.
    std::vector<RowBlock> row_blocks(int64_t heads) const;
};

// A number that every step leaves for the next one: the factor times the largest magnitude that it has met of something.
struct KeptScale {
    std::string name;  // of what is scaled: "blocks.0.mlp.up.x"
    float factor = 1;
    int64_t exact_steps = 0;  // of the run, at its start, that go by their own magnitudes

    bool operator==(const KeptScale&) const = default;
};

class ParameterTable {
  public:
    // tensor_index: which part it is of parameters whose extents are parts.
    ParameterTable() = default;
    explicit ParameterTable(int tensor_index) : tensor_index_(tensor_index) {}

    // Returns the id. matrices: as in Parameter. Throws an internal error if the name is taken.
    int declare(std::string name, const std::vector<Extent>& extents, InitRule init, int64_t matrices = 1);
    void set_head_rows(int id, const HeadRows& rows) {
        parameters_[static_cast<size_t>(id)].head_rows = rows;
    }
    // For people, one line.
    void explain(int id, std::string meaning) {
        parameters_[static_cast<size_t>(id)].meaning = std::move(meaning);
    }
    // What the graph of the model says. Throws an internal error for no use, or units out of order.
    void set_uses(int id, std::vector<UnitUse> uses);
    void set_summed(int id, const DimensionSet& summed) {
        parameters_[static_cast<size_t>(id)].summed = summed;
    }
    // Both have one shape.
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
    int64_t numel() const;  // of this rank's parts
    int64_t whole_numel() const;
    // The parameter of this name; throws if there is none.
    const Parameter& find(const std::string& name) const;
    bool contains(const std::string& name) const;

  private:
    int tensor_index_ = 0;
    std::vector<Parameter> parameters_;
    std::vector<KeptScale> scales_;
    int num_units_ = 0;
};

}  // namespace speedrun
