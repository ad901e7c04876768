// Tensors of a checkpoint, derived from the state in memory, and the pieces of them that a rank holds.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_info.h"
#include "train/checkpoint/tensor_box.h"
#include "train/sharding/sharded_state.h"

namespace speedrun {

// Elements of a tensor and their location on the device: boxes consecutively, each row by row.
struct StatePiece {
    CheckpointTensor tensor;
    std::vector<Box> boxes;  // ascending
    Tensor values;           // [count], in the tensor's dtype

    int64_t count() const { return values.numel(); }
};

// Returns all tensors of a checkpoint of this model and these optimizers, in order of declaration. Shapes are those of
// whole tensors, not of this rank's part.
std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table, const OptimizersConfig& config);

// Returns this rank's pieces of a bucket.
std::vector<StatePiece> state_pieces(const ShardedState& state, const Bucket& bucket);

// Returns the scales, which are equal on all ranks and written by rank 0.
std::vector<StatePiece> state_pieces(const ScaleStore& scales);

// True if this rank writes the bucket's pieces. Ranks with equal shards alternate bucket by bucket.
bool writes_bucket(const Ranks& ranks, const Bucket& bucket);

}  // namespace speedrun
