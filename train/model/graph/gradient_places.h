// Where the gradient of every value lies, and who adds to whom: backward's nodes in order.
#pragma once

#include <utility>
#include <vector>

#include "train/model/graph/program.h"

namespace speedrun {

// The storages of a program while it is derived.
class Storages {
  public:
    Storages(const NodeGraph& graph, DType real) : graph_(graph), real_(real) {}

    // Memory for a value of this shape; a value that the model holds has its own.
    int add(ValueId like, const std::string& name, bool gradient = false);
    int add_ids(int64_t count, const std::string& name);
    Place scratch(const Node::Scratch& scratch, const std::string& name, int step);
    // Notes that the place is used at this step; returns it.
    Place use(const Place& place, int step);
    int64_t bytes(int storage) const { return storages_[static_cast<size_t>(storage)].bytes; }
    std::vector<Storage> take() { return std::move(storages_); }

  private:
    int push(Storage storage);

    const NodeGraph& graph_;
    const DType real_;
    std::vector<Storage> storages_;
};

class GradientPlaces {
  public:
    GradientPlaces(const NodeGraph& graph, Storages& storages);

    // Does any gradient come to this node? The last node gives the first.
    bool reaches(const Node& node) const;
    // target = term + other, after the node.
    struct Sum {
        Place target, term, other;
    };
    // Places of the gradients that the node's backward reads and writes at this step, into `call`. Nodes come
    // in reverse order.
    std::vector<Sum> pass(const Node& node, int step, NodeCall& call);

  private:
    struct State {
        int storage = -1;    // of the gradient, by value; views have their root's
        bool begun = false;  // some reader has given its part
        bool read = false;   // the writer's backward has read it
    };
    State& at(ValueId value) { return states_[static_cast<size_t>(value)]; }
    const State& at(ValueId value) const { return states_[static_cast<size_t>(value)]; }
    int& storage_of(ValueId value) { return at(graph_[value].root).storage; }
    // Is it a view of some of its root's columns? One of all of them is as good as the root.
    bool is_part(ValueId value) const;
    bool overlap(ValueId a, ValueId b) const;
    bool has_gradient(ValueId value) const;
    void expect_complete(ValueId value) const;
    // Throws an internal error if another name of all of the value's memory has a gradient there that is still to be read.
    void expect_alone(ValueId value, const Node& node) const;
    // Will anybody but `value` and what this node writes still read a gradient in this memory?
    bool read_elsewhere(int storage, ValueId value, const Node& node) const;
    // Does the node's backward read a gradient there?
    bool read_here(int storage, const Node& node) const;
    GradientPlace give(const Node& node, const Node::Read& read, int step, std::vector<Sum>& sums);
    GradientPlace give_again(const Node& node, const Node::Read& read, int step, std::vector<Sum>& sums);
    void pass_on(const Node& node, ValueId value, int step, std::vector<Sum>& sums);

    const NodeGraph& graph_;
    Storages& storages_;
    std::vector<State> states_;
    std::vector<bool> given_here_;  // by root: the node at hand has given a part already
    bool place_taken_ = false;      // the node at hand writes where its first gradient lay
};

}  // namespace speedrun
