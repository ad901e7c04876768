// The model as a graph: values, and the nodes that write them, in order of forward. The rest of a step is derived from
// it (program.h). A node does not depend on its readers.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/dtype.h"
#include "train/model/graph/node.h"
#include "train/parameters/dimension.h"

namespace speedrun {

// Lifetime of a value's memory.
enum class Holder : uint8_t {
    program,   // allocated while the value is live
    model,     // permanent, written by nodes: values that are read after a pass
    batch,     // permanent, written with each microbatch
    constant,  // permanent, written once
};

struct Value {
    std::string name;
    std::vector<Extent> extents;
    Element element = Element::compute_dtype;
    Holder holder = Holder::program;
    int unit = 0;
    ValueId root = 0;  // itself; for a view, the value that owns the columns
    int64_t first_column = 0;
    std::vector<float> content = {};     // content of a constant …
    std::vector<int32_t> integers = {};  // … or of one with Element::ids

    bool is_view = false;

    int64_t numel() const;
};

class NodeGraph {
  public:
    // Starts the next unit: later nodes and values belong to it. Unit 0 is open initially. Forward and backward enter a
    // unit as a whole.
    void begin_unit() {
        ++unit_;
        unit_labels_.push_back({fmt::format("unit {}", unit_), ""});
    }
    int num_units() const { return unit_ + 1; }
    // Sets the displayed name of the open unit. `prefix`: common prefix of the names of its values and parameters.
    void name_unit(std::string name, std::string prefix = "") {
        unit_labels_.back() = {std::move(name), std::move(prefix)};
    }
    const std::string& unit_name(int unit) const { return unit_labels_[static_cast<size_t>(unit)].name; }
    // Returns the name without the unit's prefix.
    std::string local_name(std::string name, int unit) const;
    std::string local_name(ValueId id) const { return local_name((*this)[id].name, (*this)[id].unit); }

    ValueId value(std::string name, Element element, std::vector<Extent> extents,
                  Holder holder = Holder::program);
    ValueId constant(std::string name, std::vector<Extent> extents, std::vector<float> content,
                     Element element = Element::f32);
    ValueId constant(std::string name, std::vector<Extent> extents, std::vector<int32_t> integers);
    // Adds a view of columns first … first+count of another value, in its memory. A node that reads one view of columns
    // and writes another of the same columns works in place.
    ValueId view(ValueId of, std::string name, int64_t first, int64_t count);

    // Takes ownership of the node and returns it. Throws an internal error if it reads a value that no earlier node
    // writes, or writes a value twice.
    template <class T>
    const T& add(std::unique_ptr<T> node) {
        const T& added = *node;
        append(std::move(node));
        return added;
    }

    const std::vector<Value>& values() const { return values_; }
    const Value& operator[](ValueId id) const { return values_[static_cast<size_t>(id)]; }
    const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
    // Returns the size of the last dimension: columns, or rows of a vector.
    int64_t width_of(ValueId id) const { return (*this)[id].extents.back().size; }
    // True if several nodes use the parameter.
    bool is_shared(ParameterId parameter) const;
    int unit_of(const Node& node) const { return units_[static_cast<size_t>(node.id())]; }

  private:
    void append(std::unique_ptr<Node> node);

    struct UnitLabel {
        std::string name, prefix;
    };

    int unit_ = 0;
    std::vector<UnitLabel> unit_labels_{{"unit 0", ""}};
    std::vector<Value> values_;
    std::vector<bool> written_;  // index: value
    std::vector<std::unique_ptr<Node>> nodes_;
    std::vector<int> units_;  // index: node
};

}  // namespace speedrun
