#include "train/model/graph/gradient_locations.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

int Storages::push(Storage storage) {
    storages_.push_back(std::move(storage));
    return static_cast<int>(storages_.size()) - 1;
}

int Storages::add(ValueId like, const std::string& name, bool gradient) {
    const Value& value = graph_[like];
    const DType dtype = dtype_of(value.element, compute_dtype_);
    const bool held = value.holder != Holder::program && !gradient;
    return push({.name = name,
                 .bytes = value.numel() * size_of(dtype),
                 .held = held ? like : kNoValue,
                 .unit = value.unit});
}

int Storages::add_ids(int64_t count, const std::string& name) {
    return push({.name = name, .bytes = count * size_of(DType::i32)});
}

Location Storages::scratch(const Node::Scratch& scratch, const std::string& name, int instruction) {
    const int64_t bytes = scratch.rows * scratch.columns * size_of(dtype_of(scratch.element, compute_dtype_));
    const int storage = push({.name = "scratch of " + name, .bytes = bytes});
    return use(
        {.storage = storage, .rows = scratch.rows, .cols = scratch.columns, .element = scratch.element},
        instruction);
}

Location Storages::use(const Location& location, int instruction) {
    Storage& storage = storages_[static_cast<size_t>(location.storage)];
    if (storage.first < 0) storage.first = instruction;
    storage.last = std::max(storage.last, instruction);
    return location;
}

GradientLocations::GradientLocations(const NodeGraph& graph, Storages& storages)
    : graph_(graph),
      storages_(storages),
      states_(graph.values().size()),
      contributed_here_(graph.values().size()) {}

bool GradientLocations::is_part(ValueId value) const {
    const Value &v = graph_[value], &root = graph_[v.root];
    return v.is_view && v.extents[1].size < root.extents[1].size;
}

bool GradientLocations::overlap(ValueId a, ValueId b) const {
    const Value &x = graph_[a], &y = graph_[b];
    if (x.root != y.root || !is_part(a) || !is_part(b)) return true;
    return x.first_column < y.first_column + y.extents[1].size &&
           y.first_column < x.first_column + x.extents[1].size;
}

bool GradientLocations::has_gradient(ValueId value) const {
    if (is_part(value)) return at(value).started;
    return at(graph_[value].root).storage >= 0;
}

// Checks that views have contributed to all columns of a value that is read only through views.
void GradientLocations::expect_complete(ValueId value) const {
    if (graph_[value].is_view || at(value).started) return;
    std::vector<bool> covered(static_cast<size_t>(graph_[value].extents.back().size));
    for (size_t i = 0; i < graph_.values().size(); ++i) {
        const auto id = static_cast<ValueId>(i);
        const Value& view = graph_[id];
        if (!view.is_view || view.root != value || !at(id).started) continue;
        std::fill_n(covered.begin() + view.first_column, view.extents[1].size, true);
    }
    if (std::find(covered.begin(), covered.end(), false) != covered.end())
        throw_internal("some columns of {} have no gradient", graph_[value].name);
}

// A second gradient in the same memory would overwrite the first; only a node that works in place passes a gradient
// from one name to the other.
void GradientLocations::expect_alone(ValueId value, const Node& node) const {
    for (size_t i = 0; i < states_.size(); ++i) {
        const auto other = static_cast<ValueId>(i);
        if (other == value || graph_[other].root != graph_[value].root || is_part(other)) continue;
        const bool written_here = std::any_of(node.writes().begin(), node.writes().end(),
                                              [&](const Node::Write& write) { return write.value == other; });
        if (states_[i].started && !states_[i].read && !written_here)
            throw_internal("{} and {} share memory, and both receive a gradient", graph_[value].name,
                           graph_[other].name);
    }
}

bool GradientLocations::reaches(const Node& node) const {
    if (node.forward_in_backward()) return true;
    return std::any_of(node.writes().begin(), node.writes().end(),
                       [&](const Node::Write& write) { return has_gradient(write.value); });
}

bool GradientLocations::read_elsewhere(int storage, ValueId value, const Node& node) const {
    if (kept_.contains(storage)) return true;
    for (size_t i = 0; i < states_.size(); ++i) {
        const auto id = static_cast<ValueId>(i);
        if (id == value || !states_[i].started || states_[i].read) continue;
        if (at(graph_[id].root).storage != storage || !overlap(id, value)) continue;
        const bool written_here = std::any_of(node.writes().begin(), node.writes().end(),
                                              [&](const Node::Write& write) { return write.value == id; });
        if (!written_here) return true;
    }
    return false;
}

bool GradientLocations::read_here(int storage, const Node& node) const {
    return std::any_of(node.writes().begin(), node.writes().end(), [&](const Node::Write& write) {
        return has_gradient(write.value) && at(graph_[write.value].root).storage == storage;
    });
}

std::vector<GradientLocations::Sum> GradientLocations::pass(const Node& node, int instruction, NodeCall& call,
                                                            std::span<const Node::SharedTerm> later) {
    std::vector<Sum> sums;
    call.shares = !later.empty();
    if (call.shares) kept_.insert(storage_of(node.writes().front().value));
    const auto is_later = [&](size_t i) {
        return std::any_of(later.begin(), later.end(), [&](const Node::SharedTerm& term) {
            return term.value == i || term.coefficient == i;
        });
    };
    for (const Node::Write& write : node.writes()) {
        Location location;
        if (has_gradient(write.value)) {
            expect_complete(write.value);
            location = storages_.use({.storage = storage_of(write.value), .like = write.value}, instruction);
        }
        call.written_gradients.push_back(location);
    }
    std::fill(contributed_here_.begin(), contributed_here_.end(), false);
    storage_reused_ = false;
    call.read_gradients.resize(node.reads().size());
    // Gradients added in place are first: other contributions of this node to the same value are added afterwards.
    for (const bool added : {true, false}) {
        for (size_t i = 0; i < node.reads().size(); ++i) {
            const Node::Read& read = node.reads()[i];
            if (read.gradient == GradientRule::none || (read.gradient == GradientRule::added) != added)
                continue;
            if (is_later(i)) continue;
            if (read.gradient == GradientRule::passed) {
                pass_on(node, read.value, instruction, sums);
            } else {
                call.read_gradients[i] = assign_gradient(node, read, instruction, sums);
            }
            at(read.value).started = true;
            contributed_here_[static_cast<size_t>(graph_[read.value].root)] = true;
        }
    }
    for (const Node::Write& write : node.writes()) at(write.value).read = true;
    return sums;
}

std::vector<GradientLocations::Sum> GradientLocations::pass_shared(std::span<const SharingNode> members,
                                                                   int instruction,
                                                                   std::span<NodeCall> calls) {
    std::vector<Sum> sums;
    std::set<ValueId> assigned;
    std::fill(contributed_here_.begin(), contributed_here_.end(), false);
    storage_reused_ = false;
    for (size_t i = 0; i < members.size(); ++i) {
        const Node& node = *members[i].node;
        const ValueId written = node.writes().front().value;
        calls[i].read_gradients.resize(node.reads().size());
        calls[i].written_gradients = {
            storages_.use({.storage = storage_of(written), .like = written}, instruction)};
        for (const Node::SharedTerm& term : members[i].terms) {
            for (const size_t read : {term.value, term.coefficient}) {
                const ValueId value = node.reads()[read].value;
                if (!assigned.insert(value).second) continue;
                calls[i].read_gradients[read] = assign_gradient(node, node.reads()[read], instruction, sums);
                at(value).started = true;
            }
        }
    }
    for (const SharingNode& member : members) kept_.erase(storage_of(member.node->writes().front().value));
    return sums;
}

GradientLocation GradientLocations::assign_gradient(const Node& node, const Node::Read& read, int instruction,
                                                    std::vector<Sum>& sums) {
    const ValueId value = read.value, root = graph_[value].root;
    int& storage = storage_of(value);
    const auto location = [&](int at_storage) {
        return storages_.use({.storage = at_storage, .like = value}, instruction);
    };
    // True if a sum after the node reads this storage.
    const auto is_summed = [&](int at_storage) {
        return std::any_of(sums.begin(), sums.end(), [&](const Sum& sum) {
            return sum.term.storage == at_storage || sum.other.storage == at_storage;
        });
    };
    const auto added_later = [&](int at_storage) {
        return (at(value).started && storage == at_storage) || is_summed(at_storage);
    };
    // Returns storage for the whole gradient: that of the gradient of the node's first written value, or new storage.
    const auto fresh = [&] {
        if (read.in_place && !storage_reused_ && !node.writes().empty()) {
            const ValueId first = node.writes().front().value;
            const int there = storage_of(first);
            if (has_gradient(first) && !is_part(first) && !is_part(value) &&
                graph_[first].numel() == graph_[value].numel() &&
                graph_[first].element == graph_[value].element && !read_elsewhere(there, value, node) &&
                !added_later(there)) {
                storage_reused_ = true;
                return there;
            }
        }
        return storages_.add(root, "gradient of " + graph_[root].name, true);
    };
    const bool started = at(value).started;
    if (is_part(value)) {
        if (read.gradient == GradientRule::plus)
            throw_internal("{} cannot add to the gradient of {}, which is a view", node.kind(),
                           graph_[value].name);
        if (started) return accumulate_gradient(node, read, instruction, sums);
        if (storage < 0) storage = fresh();
        if (!read.in_place) {
            for (const Node::Write& write : node.writes())
                if (storage_of(write.value) == storage && overlap(write.value, value))
                    throw_internal("{} cannot work in place on {}", node.kind(), graph_[value].name);
        }
        return {.tensor = location(storage)};
    }
    if (!started) {
        expect_alone(value, node);
        storage = fresh();
        return {.tensor = location(storage)};
    }
    const bool free = !read_elsewhere(storage, value, node) &&
                      !contributed_here_[static_cast<size_t>(root)] && !is_summed(storage) &&
                      (read.in_place || !read_here(storage, node));
    if (free && read.gradient == GradientRule::added) return {.tensor = location(storage), .adds = true};
    if (free && read.gradient == GradientRule::plus)
        return {.tensor = location(storage), .other = location(storage)};
    const Location before = location(storage);
    storage = fresh();
    const Location now = location(storage);
    if (read.gradient == GradientRule::plus && !contributed_here_[static_cast<size_t>(root)])
        return {.tensor = now, .other = before};
    sums.push_back({now, now, before});
    return {.tensor = now};
}

// Further contribution to a view's gradient: added in place, or written to scratch and added after the node.
GradientLocation GradientLocations::accumulate_gradient(const Node& node, const Node::Read& read,
                                                        int instruction, std::vector<Sum>& sums) {
    const Value& value = graph_[read.value];
    const Location there =
        storages_.use({.storage = storage_of(read.value), .like = read.value}, instruction);
    if (read.gradient == GradientRule::added && !contributed_here_[static_cast<size_t>(value.root)])
        return {.tensor = there, .adds = true};
    const Location part = storages_.scratch({.rows = value.extents[0].size,
                                             .columns = value.extents[1].size,
                                             .forward = false,
                                             .backward = true,
                                             .element = value.element},
                                            node.kind(), instruction);
    sums.push_back({there, part, there});
    return {.tensor = part};
}

// The gradient of the node's first written value becomes that of `value`, or is added to it.
void GradientLocations::pass_on(const Node& node, ValueId value, int instruction, std::vector<Sum>& sums) {
    const ValueId from = node.writes().front().value;
    const int given = storage_of(from);
    int& storage = storage_of(value);
    if (graph_[value].root == graph_[from].root) return;  // in place
    if (is_part(value) || is_part(from))
        throw_internal("{} cannot pass the gradient of {} to {}", node.kind(), graph_[from].name,
                       graph_[value].name);
    if (!at(value).started) {
        expect_alone(value, node);
        storage = given;
        return;
    }
    const auto location = [&](int at_storage) {
        return storages_.use({.storage = at_storage, .like = value}, instruction);
    };
    const Location part = location(given), before = location(storage);
    // Other values may share the passed gradient, so the sum needs storage of its own.
    if (storage == given || read_elsewhere(storage, value, node))
        storage = storages_.add(value, "gradient of " + graph_[value].name, true);
    sums.push_back({location(storage), before, part});
}

}  // namespace speedrun
