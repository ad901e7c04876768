// Storage of each value's gradient, and how contributions are summed, for backward's nodes in order.
#pragma once

#include <set>
#include <span>
#include <utility>
#include <vector>

#include "train/model/graph/program.h"
#include "train/model/graph/shared_terms.h"

namespace speedrun {

// Storages of a program during its derivation.
class Storages {
  public:
    Storages(const NodeGraph& graph, DType compute_dtype) : graph_(graph), compute_dtype_(compute_dtype) {}

    // Adds storage for a value of this shape; values with another holder than program have memory of their own.
    int add(ValueId like, const std::string& name, bool gradient = false);
    int add_ids(int64_t count, const std::string& name);
    Location scratch(const Node::Scratch& scratch, const std::string& name, int instruction);
    // Records a use of the place at this step; returns the place.
    Location use(const Location& location, int instruction);
    int64_t bytes(int storage) const { return storages_[static_cast<size_t>(storage)].bytes; }
    std::vector<Storage> take() { return std::move(storages_); }

  private:
    int push(Storage storage);

    const NodeGraph& graph_;
    const DType compute_dtype_;
    std::vector<Storage> storages_;
};

class GradientLocations {
  public:
    GradientLocations(const NodeGraph& graph, Storages& storages);

    // True if a gradient reaches this node. The last node starts backward.
    bool reaches(const Node& node) const;
    // Addition after the node: target = term + other.
    struct Sum {
        Location target, term, other;
    };
    // Assigns the gradients that the node's backward reads and writes at this step, and stores them in `call`. Call in
    // reverse order of nodes.
    std::vector<Sum> pass(const Node& node, int instruction, NodeCall& call) {
        return pass(node, instruction, call, {});
    }
    // As above, without the gradients of these terms. The gradient of the node's first written value is kept for
    // pass_shared().
    std::vector<Sum> pass(const Node& node, int instruction, NodeCall& call,
                          std::span<const Node::SharedTerm> later);
    // Assigns the gradients of terms left out by pass(), for several nodes in reverse order: call[i] of members[i]. The
    // gradient of a value is that of the first member with it.
    std::vector<Sum> pass_shared(std::span<const SharingNode> members, int instruction,
                                 std::span<NodeCall> calls);

  private:
    struct State {
        int storage = -1;      // storage of the gradient; views use their root's
        bool started = false;  // a reader has contributed
        bool read = false;     // the writer's backward has read it
    };
    State& at(ValueId value) { return states_[static_cast<size_t>(value)]; }
    const State& at(ValueId value) const { return states_[static_cast<size_t>(value)]; }
    int& storage_of(ValueId value) { return at(graph_[value].root).storage; }
    // True for a view of a strict subset of the root's columns.
    bool is_part(ValueId value) const;
    bool overlap(ValueId a, ValueId b) const;
    bool has_gradient(ValueId value) const;
    void expect_complete(ValueId value) const;
    // Throws an internal error if another name of the same memory holds a gradient there that has not been read yet.
    void expect_alone(ValueId value, const Node& node) const;
    // True if a gradient in this memory is kept, or still to be read for another value than `value` and this node's outputs.
    bool read_elsewhere(int storage, ValueId value, const Node& node) const;
    // True if the node's backward reads a gradient there.
    bool read_here(int storage, const Node& node) const;
    GradientLocation assign_gradient(const Node& node, const Node::Read& read, int instruction,
                                     std::vector<Sum>& sums);
    GradientLocation accumulate_gradient(const Node& node, const Node::Read& read, int instruction,
                                         std::vector<Sum>& sums);
    void pass_on(const Node& node, ValueId value, int instruction, std::vector<Sum>& sums);

    const NodeGraph& graph_;
    Storages& storages_;
    std::vector<State> states_;
    std::vector<bool> contributed_here_;  // index: root; the current node has contributed
    std::set<int> kept_;                  // storages of gradients that pass_shared() reads
    bool storage_reused_ = false;         // the current node reuses the storage of its first gradient
};

}  // namespace speedrun
