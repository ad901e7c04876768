// The tensors of a checkpoint, from what is in memory: which there are, and which pieces of them a rank
// holds.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_info.h"
#include "train/checkpoint/tensor_box.h"
#include "train/sharding/sharded_state.h"

namespace speedrun {

// Numbers of a tensor, and where they lie on the device: those of each box row by row, one behind the other.
struct StatePiece {
    CheckpointTensor tensor;
    std::vector<TensorBox> boxes;  // ascending
    Tensor values;                 // [count], of the tensor's type

    int64_t count() const { return values.numel(); }
};

// All tensors of a checkpoint of this model and these optimizers, in order of declaration, whole ones whatever part of
// them the table's rank has.
std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table, const OptimizersConfig& config);

// This rank's pieces of a bucket.
std::vector<StatePiece> state_pieces(const ShardedState& state, const Bucket& bucket);

// The scales, which all ranks have alike and the first one writes.
std::vector<StatePiece> state_pieces(const ScaleStore& scales);

// Does this rank write the bucket's pieces? Ranks that hold the same shards take turns, bucket by bucket.
bool writes_bucket(const Ranks& ranks, const Bucket& bucket);

}  // namespace speedrun
