// The tensors of a checkpoint, from what is in memory: which there are, and which pieces of them a rank
// holds.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_info.h"
#include "train/sharding/update_pipeline.h"

namespace speedrun {

// `count` numbers of a tensor from `begin` on, flattened, and where they lie on the device.
struct StatePiece {
    CheckpointTensor tensor;
    int64_t begin = 0;
    Tensor values;  // f32 [count]

    int64_t count() const { return values.numel(); }
    bool whole() const { return count() == tensor.numel(); }
    std::string name() const;  // "master/head.weight", "adamw_m/head.weight[512:1024]"
};

// The numbers that a piece's name says: [begin, end), or all of the tensor where it says none.
struct PieceName {
    std::string tensor;
    int64_t begin = 0, end = -1;  // end -1: all of it
};
PieceName parse_piece_name(const std::string& name);

// All tensors of a checkpoint of this model and these optimizers, in order of declaration.
std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table, const OptimizersConfig& config);

// This rank's pieces of a bucket.
std::vector<StatePiece> state_pieces(const UpdatePipeline& updates, const Bucket& bucket);

// Does this rank write the bucket's pieces? Ranks that hold the same shards take turns, bucket by bucket.
bool writes_bucket(const Ranks& ranks, const Bucket& bucket);

}  // namespace speedrun
