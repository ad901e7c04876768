// Node: one operation of the model's maths, forward and backward. It declares the values that it reads and writes, the
// ones that backward needs, and the cost of recomputation. forward() and backward() enqueue operations of kernels/ops
// on tensors of a Call. Memory placement, gradient accumulation, completion of gradients and recomputation are derived
// outside the node (program.h).
#pragma once

#include <cstdint>
#include <span>
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

// Class of a node's outputs for activation checkpointing. A unit keeps all values up to one class (Retained).
enum class Cost : uint8_t {
    input,      // lookup in another unit's tables; a unit's input
    product,    // matmuls and attention
    pointwise,  // all other operations
};

// How a node's backward returns the gradient of a value that it reads.
enum class GradientRule : uint8_t {
    none,     // no gradient, such as ids
    written,  // overwritten
    added,    // overwritten, or added to the sum of other readers, as the Call specifies
    plus,     // overwritten, plus the sum of other readers, which may be in another buffer
    passed,   // equal to the gradient of the first value that the node writes
};

class Node {
  public:
    struct Read {
        ValueId value;
        GradientRule gradient = GradientRule::none;
        bool in_backward = false;  // backward reads the value
        // The gradient may overwrite that of the first written value.
        bool in_place = false;
        // Backward reads the sorted order of these ids (op::SortIds), which are below this bound; 0: it does not.
        int64_t sorted_below = 0;
        bool of_others = false;  // ids may equal the bound: their rows are on other ranks
    };
    struct Write {
        ValueId value;
        bool in_backward = false;
    };
    struct Use {
        ParameterId parameter;
        bool in_backward = false;  // backward reads the parameter
    };
    struct Scratch {
        int64_t rows, columns;
        bool forward, backward;
        Element element = Element::compute_dtype;
    };

    // Indices into the lists below; an absent port yields an absent tensor.
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
    // Returns the kind and all attributes that distinguish two nodes of it, such as "linear 768 -> 3072".
    virtual std::string describe(const NodeGraph& /*graph*/) const { return kind(); }
    // Collective of one pass, in elements of the compute dtype.
    struct Sent {
        Collective kind;
        Axis axis;
        int64_t elements;      // elements received by each rank, or reduced
        double sent_elements;  // elements sent by a rank, mean over ranks
        bool full_precision = false;
    };
    virtual std::vector<Sent> sent(const NodeGraph& /*graph*/, bool /*backward*/) const { return {}; }
    virtual void forward(const Call& call) const = 0;
    virtual void backward(const Call& call) const = 0;
    // A term of a sum: the indices of a value and of its coefficient in reads(). Its gradients may be computed after the
    // node's backward, together with terms of other sums with the same value.
    struct SharedTerm {
        size_t value, coefficient;
    };
    virtual std::vector<SharedTerm> shared_terms(const NodeGraph& /*graph*/) const { return {}; }
    // Backward of such terms of several nodes of one kind, as one operation: a call per node, with tensors of these terms
    // and the gradient of the first value that the node writes.
    virtual void backward_of_shared(std::span<const Call> calls) const;
    // True if the node only passes a value on, so that keeping its input is as good as keeping its output.
    virtual bool passes_through() const { return false; }
    // True if forward of the last node runs within its backward, which computes intermediate values in chunks.
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
    // Requests scratch for the duration of a call.
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
