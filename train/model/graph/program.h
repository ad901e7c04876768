// Program: operations of forward and backward in order, derived from a graph. The derivation decides fusions,
// recomputation, accumulation of gradients, completion and release of parameters, and the storage of every tensor.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/fusion.h"
#include "train/model/graph/graph.h"
#include "train/model/graph/retention.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

// Memory of a value, a gradient, or scratch.
struct Storage {
    std::string name;
    int64_t bytes = 0;
    int first = -1, last = -1;  // first and last step that use it
    ValueId held = kNoValue;    // permanent value (Holder) that owns the memory, or none
    int unit = -1;              // unit of the value; −1: none
};

// Location of a tensor: the shape of value `like` within the storage of its root. storage −1: absent.
struct Location {
    int storage = -1;
    ValueId like = kNoValue;     // if none, a tensor of:
    int64_t rows = 0, cols = 0;  // this shape
    Element element = Element::compute_dtype;
};

using GradientLocation = GradientOf<Location>;
using NodeCall = NodeCallOf<Location, ParameterId>;

struct Instruction {
    enum class Kind : uint8_t {
        enter,     // begins a unit
        forward,   // one node, or several fused
        backward,  // one node, or two fused
        shared,    // backward of terms with the same values, of several nodes (Node::backward_of_shared)
        sort,      // ids, for backward of lookups
        add,       // target = term + other
    };
    Kind kind;
    int unit = 0;
    int number = -1;       // index for Storage::first and last; unset for enter
    bool repeats = false;  // forward recomputed in backward
    std::vector<NodeCall> calls = {};
    const Fusion* fusion = nullptr;
    Location target = {}, term = {}, other = {};  // sort: order, ids; add: values
    int64_t limit = 0;                            // sort: exclusive bound of the ids
    bool others = false;                          // sort: ids may equal the bound (Node::Read::of_others)
    std::vector<ParameterId> freed = {};
};

struct Program {
    std::vector<Instruction> forward, backward;
    Instruction loss;  // forward of the last node, for a pass without backward
    std::vector<Storage> storages;
};

// Assigns each storage except held ones to an offset in shared memory.
BufferAssignment share_memory(const Program& program);

// Derives the program. The last node of the graph must be the loss. Throws an internal error, with names, for a graph
// whose gradients cannot be derived. with_backward false: `backward` is empty, and values live until their last read in
// forward.
Program derive_program(const NodeGraph& graph, const Fusions& fusions, const Retained& retained,
                       DType compute_dtype, bool with_backward = true);

}  // namespace speedrun
