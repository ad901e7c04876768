#include "train/model/graph/graph.h"

#include "kernels/device/error.h"

namespace speedrun {

int64_t Value::numel() const {
    int64_t product = 1;
    for (const Extent& extent : extents) product *= extent.size;
    return product;
}

std::string NodeGraph::local_name(std::string name, int unit) const {
    const std::string& prefix = unit_labels_[static_cast<size_t>(unit)].prefix;
    const size_t at = name.find(prefix);
    if (at != std::string::npos) name.erase(at, prefix.size());
    return name;
}

bool NodeGraph::is_shared(ParameterId parameter) const {
    int users = 0;
    for (const auto& node : nodes_)
        for (const Node::Use& use : node->uses()) users += use.parameter == parameter ? 1 : 0;
    return users > 1;
}

ValueId NodeGraph::value(std::string name, Element element, std::vector<Extent> extents, Holder holder) {
    const auto id = static_cast<ValueId>(values_.size());
    if (extents.empty() || extents.size() > 2)
        throw_internal("value {}: {} dimensions, expected 1 or 2", name, extents.size());
    for (const Extent& extent : extents)
        if (extent.size < 1) throw_internal("value {}: a dimension of {}", name, extent.size);
    values_.push_back({.name = std::move(name),
                       .extents = std::move(extents),
                       .element = element,
                       .holder = holder,
                       .unit = unit_,
                       .root = id});
    written_.push_back(holder == Holder::batch || holder == Holder::constant);
    return id;
}

ValueId NodeGraph::constant(std::string name, std::vector<Extent> extents, std::vector<float> content,
                            Element element) {
    const ValueId id = value(std::move(name), element, std::move(extents), Holder::constant);
    Value& added = values_.back();
    if (added.numel() != static_cast<int64_t>(content.size()))
        throw_internal("constant {}: {} numbers for {}", added.name, content.size(), added.numel());
    added.content = std::move(content);
    return id;
}

ValueId NodeGraph::constant(std::string name, std::vector<Extent> extents, std::vector<int32_t> integers) {
    const ValueId id = value(std::move(name), Element::ids, std::move(extents), Holder::constant);
    Value& added = values_.back();
    if (added.numel() != static_cast<int64_t>(integers.size()))
        throw_internal("constant {}: {} numbers for {}", added.name, integers.size(), added.numel());
    added.integers = std::move(integers);
    return id;
}

ValueId NodeGraph::view(ValueId of, std::string name, int64_t first, int64_t count) {
    const Value& seen = (*this)[of];
    const Value& root = (*this)[seen.root];
    if (root.extents.size() != 2 || first < 0 || first + count > seen.extents[1].size)
        throw_internal("view {}: columns {} to {} of {}", name, first, first + count, seen.name);
    Value added = {.name = std::move(name),
                   .extents = {root.extents[0], {root.extents[1].dimension, count}},
                   .element = root.element,
                   .holder = root.holder,
                   .unit = unit_,
                   .root = seen.root,
                   .first_column = seen.first_column + first,
                   .is_view = true};
    values_.push_back(std::move(added));
    written_.push_back(false);
    return static_cast<ValueId>(values_.size()) - 1;
}

void NodeGraph::append(std::unique_ptr<Node> node) {
    // A view is written with its root, or by a node of its own.
    const auto is_written = [&](ValueId id) {
        return written_[static_cast<size_t>(id)] || written_[static_cast<size_t>((*this)[id].root)];
    };
    for (const Node::Read& read : node->reads())
        if (!is_written(read.value))
            throw_internal("{} reads {}, which no node before it writes", node->kind(),
                           (*this)[read.value].name);
    for (const Node::Write& write : node->writes()) {
        if (written_[static_cast<size_t>(write.value)])
            throw_internal("{} writes {}, which is written already", node->kind(), (*this)[write.value].name);
        written_[static_cast<size_t>(write.value)] = true;
    }
    node->id_ = static_cast<int>(nodes_.size());
    units_.push_back(unit_);
    nodes_.push_back(std::move(node));
}

}  // namespace speedrun
