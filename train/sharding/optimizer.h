// What every optimizer offers: a step of its buckets of parameters, enqueued: of this rank's shards.
// Implementations: train/optim.
#pragma once

#include <vector>

#include "train/sharding/reducer.h"

namespace speedrun {

struct StepContext {
    int64_t step = 0;      // of this optimizer, from 0
    double lr_factor = 1;  // of the schedule
    Tensor grad_scale;     // f32 [1]: gradients are multiplied by it; not finite: the step changes nothing
    Stream* stream = nullptr;
};

// What an optimizer remembers of a parameter: `values` numbers for each `elements` elements in a row. So a
// piece of the parameter has its own piece of the state, however parameters are cut among ranks.
struct StateKind {
    const char* name;  // "adamw_m"; lives for ever
    int64_t elements = 1, values = 1;
};
struct StateShard {
    StateKind kind;
    Tensor values;  // f32 [k]; k may be 0
    // Null: `values` are the state of this rank's shard of the bucket. Else they are the state of whole
    // matrices of this parameter, and `begin` is where they lie in the parameter's state, in numbers.
    const Parameter* parameter = nullptr;
    int64_t begin = 0;
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    // Does begin() do all of a bucket's step? Otherwise its master and compute copy change in finish().
    virtual bool at_once() const = 0;
    // Called for each bucket, in the order in which they were given, as soon as its gradient is reduced,
    // which is read no more afterwards.
    virtual void begin(const Bucket& bucket, const StepContext& context) = 0;
    // Between: called when all buckets have begun.
    virtual void compute_updates(const StepContext&) {}
    // Called for each bucket, in that order.
    virtual void finish(const Bucket&, const StepContext&) {}
    // Enqueues the state of step 0.
    virtual void reset(Stream& stream) = 0;
    // Everything that a step reads and changes besides the master, for this rank's shard of a bucket: what a
    // checkpoint holds.
    virtual std::vector<StateShard> state(const Bucket& bucket) const = 0;
};

}  // namespace speedrun
