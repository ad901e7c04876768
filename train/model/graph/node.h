// A node: one idea of the maths, both directions side by side. It states what it reads and writes, what its
// backward needs of that, and how dear it is to repeat; forward and backward then enqueue operations of
// kernels/ops on the tensors that a Call gives them. Where these lie, which gradients are added to others,
// when a parameter's gradient is complete and what is computed again: none of it is a node's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/comm/collective.h"
#include "train/comm/mesh.h"
#include "train/model/graph/element.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

using ValueId = int;
constexpr ValueId kNoValue = -1;

class Call;
class NodeGraph;

// What activation checkpointing goes by: what a block keeps at least comes first.
enum class Cost : uint8_t {
    input,      // a look-up in another unit's tables; a unit's input
    product,    // matrix products and attention
    pointwise,  // all else
};

// How backward gives the gradient of a value that a node reads.
enum class Gives : uint8_t {
    nothing,  // it has none, such as ids
    written,  // written
    added,    // written or added to what other readers gave, as the Call says
    plus,     // written, plus what other readers gave, which may lie elsewhere
    passed,   // that of the first value that the node writes, as it is
};

class Node {
  public:
    struct Read {
        ValueId value;
        Gives gradient = Gives::nothing;
        bool in_backward = false;  // backward reads its values
        // The gradient may be written where that of the first written value lies.
        bool in_place = false;
        // Backward wants the order of these ids (op::SortIds), which are below this; 0: it does not.
        int64_t sorted_below = 0;
        bool of_others = false;  // … or are just that: rows that other ranks have
    };
    struct Write {
        ValueId value;
        bool in_backward = false;
    };
    struct Use {
        ParameterId parameter;
        bool in_backward = false;  // backward reads its values
    };
    struct Scratch {
        int64_t rows, columns;
        bool forward, backward;
        Element element = Element::real;
    };

    // Indices into the lists below; absent ports give absent tensors.
    struct In {
        int index = -1;
    };
    struct Out {
        int index = -1;
    };
    struct Par {
        int index = -1;
    };
    struct Tmp {
        int index = -1;
    };

    explicit Node(Cost cost) : cost_(cost) {}
    virtual ~Node() = default;
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    virtual const char* kind() const = 0;
    // Says, for people, the kind and all that tells two nodes of it apart, such as "linear 768 -> 3072".
    virtual std::string describe(const NodeGraph& /*graph*/) const { return kind(); }
    // The collectives of one pass among the ranks that share rows, in order; in elements of the compute type.
    struct Sent {
        Collective kind;
        Axis axis;
        int64_t elements;      // that all ranks receive, or of what is reduced
        double sent_elements;  // by a rank to others, mean over them
        bool full_precision = false;
    };
    virtual std::vector<Sent> sent(const NodeGraph& /*graph*/, bool /*backward*/) const { return {}; }
    virtual void forward(const Call& call) const = 0;
    virtual void backward(const Call& call) const = 0;
    // Does it only hand on a value, so that keeping what it writes is keeping what it reads?
    virtual bool hands_on() const { return false; }
    // Is forward of the last node left to its backward, which computes what it needs in pieces?
    virtual bool forward_in_backward() const { return false; }

    Cost cost() const { return cost_; }
    int id() const { return id_; }
    const std::vector<Read>& reads() const { return reads_; }
    const std::vector<Write>& writes() const { return writes_; }
    const std::vector<Use>& uses() const { return uses_; }
    const std::vector<Scratch>& scratch() const { return scratch_; }

    ValueId value_of(In port) const { return reads_[static_cast<size_t>(port.index)].value; }
    ValueId value_of(Out port) const { return writes_[static_cast<size_t>(port.index)].value; }

  protected:
    In reads(const Read& read) {
        if (read.value == kNoValue) return {};
        reads_.push_back(read);
        return {static_cast<int>(reads_.size()) - 1};
    }
    Out writes(const Write& write) {
        if (write.value == kNoValue) return {};
        writes_.push_back(write);
        return {static_cast<int>(writes_.size()) - 1};
    }
    Par uses(ParameterId parameter, bool in_backward) {
        if (parameter == kNoParameter) return {};
        uses_.push_back({parameter, in_backward});
        return {static_cast<int>(uses_.size()) - 1};
    }
    // Memory for the time of a call.
    Tmp needs(const Scratch& scratch) {
        scratch_.push_back(scratch);
        return {static_cast<int>(scratch_.size()) - 1};
    }

  private:
    friend class NodeGraph;

    const Cost cost_;
    int id_ = -1;
    std::vector<Read> reads_;
    std::vector<Write> writes_;
    std::vector<Use> uses_;
    std::vector<Scratch> scratch_;
};

}  // namespace speedrun
