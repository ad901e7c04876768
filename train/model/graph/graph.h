// The model as a graph: values, and the nodes that make them, in the order in which forward runs. What a step
// needs besides is derived from it (program.h): no node knows who reads what it writes.
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

// Who holds a value's memory.
enum class Holder : uint8_t {
    program,   // for as long as the value lives
    model,     // from the first step to the last, written by nodes: what is read after a pass
    batch,     // likewise, written with each microbatch
    constant,  // likewise, written once
};

struct Value {
    std::string name;
    std::vector<Extent> extents;
    Element element = Element::real;
    Holder holder = Holder::program;
    int unit = 0;
    ValueId root = 0;  // itself, or the value of whose columns this is a view
    int64_t first_column = 0;
    std::vector<float> content = {};     // of a constant …
    std::vector<int32_t> integers = {};  // … of Element::ids

    bool is_view = false;

    int64_t numel() const;
};

class NodeGraph {
  public:
    // Nodes and values from here on belong to the next unit (unit 0 is open from the start): what forward and
    // backward enter as one.
    void begin_unit() {
        ++unit_;
        unit_labels_.push_back({fmt::format("unit {}", unit_), ""});
    }
    int num_units() const { return unit_ + 1; }
    // Names the open unit, for people. `prefix`: what the names of its values and parameters begin with.
    void name_unit(std::string name, std::string prefix = "") {
        unit_labels_.back() = {std::move(name), std::move(prefix)};
    }
    const std::string& unit_name(int unit) const { return unit_labels_[static_cast<size_t>(unit)].name; }
    // A name of that unit without the unit's prefix.
    std::string local_name(std::string name, int unit) const;
    std::string local_name(ValueId id) const { return local_name((*this)[id].name, (*this)[id].unit); }

    ValueId value(std::string name, Element element, std::vector<Extent> extents,
                  Holder holder = Holder::program);
    ValueId constant(std::string name, std::vector<Extent> extents, std::vector<float> content,
                     Element element = Element::f32);
    ValueId constant(std::string name, std::vector<Extent> extents, std::vector<int32_t> integers);
    // Columns first … first+count of another value, in its memory. A node that reads one view of columns and
    // writes another of the same columns works in place.
    ValueId view(ValueId of, std::string name, int64_t first, int64_t count);

    // Takes over the node; returns it. Throws an internal error if it reads what no node before it has
    // written, or writes what is written already.
    template <class T>
    const T& add(std::unique_ptr<T> node) {
        const T& added = *node;
        append(std::move(node));
        return added;
    }

    const std::vector<Value>& values() const { return values_; }
    const Value& operator[](ValueId id) const { return values_[static_cast<size_t>(id)]; }
    const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
    // Columns of a value; of one that has rows alone, these.
    int64_t width_of(ValueId id) const { return (*this)[id].extents.back().size; }
    // Does more than one node use it?
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
    std::vector<bool> written_;  // by value
    std::vector<std::unique_ptr<Node>> nodes_;
    std::vector<int> units_;  // by node
};

}  // namespace speedrun
