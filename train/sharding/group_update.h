// GroupUpdate: a step of one optimizer group, bucket by bucket, of this rank's shards: which pieces its
// optimizer (train/optim) is given, and the memory of its state.
#pragma once

#include <memory>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/reducer.h"

namespace speedrun {

// What updates work on; all of it outlives them.
struct UpdateStores {
    ParameterStore& parameters;
    GradientStore& gradients;
    Reducer& reducer;
    Runtime& runtime;
    // Elements of the matrices that are transformed together, unless one alone has more: bounds the workspace.
    int64_t most_batched = int64_t{32} << 20;
};

struct StateShard {
    StateKind kind;
    Tensor values;  // [k], of the kind's type; k may be 0
    // Null: `values` are the state of this rank's shard of the bucket. Else they are the state of whole
    // matrices of this parameter, `begin` is their offset in the state of the parameter, in numbers, and `shape` its shape
    // (state_tensors of train/optim/state.h).
    const Parameter* parameter = nullptr;
    int64_t begin = 0;
    std::vector<int64_t> shape = {};
};

class GroupUpdate {
  public:
    virtual ~GroupUpdate() = default;
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

// The update of one group. members: its buckets, in the order in which they are stepped.
std::unique_ptr<GroupUpdate> make_group_update(const OptimizerGroupConfig& group,
                                               const std::vector<const Bucket*>& members,
                                               const UpdateStores& stores);
// The updates of all groups, by index in the config, each for its buckets in step order.
std::vector<std::unique_ptr<GroupUpdate>> make_group_updates(const OptimizersConfig& config, StepOrder order,
                                                             const UpdateStores& stores);

}  // namespace speedrun
