// What forward and backward enqueue, in order, derived from a graph: nodes and fusions of neighbours, what is
// computed again, which gradient is written and which added to, when parameters are complete and released,
// and where every tensor lies.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/fusion.h"
#include "train/model/graph/graph.h"
#include "train/model/graph/retention.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

// A piece of memory: of a value, of a gradient, or scratch.
struct Storage {
    std::string name;
    int64_t bytes = 0;
    int first = -1, last = -1;  // steps at which it is used
    ValueId held = kNoValue;    // the value whose memory lives as long as the model (Holder); else none
    int unit = -1;              // of the value; −1: of none
};

// Where a tensor lies: the shape of a value, in a storage of its root. storage −1: absent.
struct Place {
    int storage = -1;
    ValueId like = kNoValue;     // a value; or none:
    int64_t rows = 0, cols = 0;  // of these elements
    Element element = Element::real;
};

struct GradientPlace {
    Place place;
    bool adds = false;
    Place other = {};
};

// One node in one step.
struct NodeCall {
    struct Use {
        ParameterId parameter;
        bool completes = false, read_later = false;
    };
    const Node* node = nullptr;
    std::vector<Place> reads, writes, scratch, orders;
    std::vector<Place> written_gradients;
    std::vector<GradientPlace> read_gradients;
    std::vector<Use> uses;
};

struct Step {
    enum class Kind : uint8_t {
        enter,     // a unit
        forward,   // of a node, or of several by a fusion
        backward,  // of a node
        sort,      // ids, for backward of look-ups
        add,       // target = term + other
    };
    Kind kind;
    int unit = 0;
    int number = -1;       // which Storage::first and last count; enter: none
    bool repeats = false;  // a forward that backward runs again
    std::vector<NodeCall> calls = {};
    const Fusion* fusion = nullptr;
    Place target = {}, term = {}, other = {};  // sort: the order, the ids; add: values
    int64_t limit = 0;                         // sort: ids are below it
    bool others = false;                       // … or equal to it (Node::Read::of_others)
    std::vector<ParameterId> released = {};
};

struct Program {
    std::vector<Step> forward, backward;
    Step loss;  // forward of the last node, for a pass without backward
    std::vector<Storage> storages;
};

// Where each storage lies in the memory that all but the held ones share.
Lodging share_memory(const Program& program);

// The last node of the graph is the loss. Throws an internal error for a graph whose gradients it can't
// derive, with the names. goes_back: without, `backward` is empty, and values live until forward has read them.
Program derive_program(const NodeGraph& graph, const Fusions& fusions, const Retained& retained, DType real,
                       bool goes_back = true);

}  // namespace speedrun
