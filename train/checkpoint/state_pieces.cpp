#include "train/checkpoint/state_pieces.h"

#include "train/optim/groups.h"
#include "train/optim/state.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

namespace {

CheckpointTensor tensor_of(const StateKind& kind, const Parameter& p) {
    return {std::string(kind.name) + "/" + p.name,
            kind.per_element() ? p.whole_shape()
                               : std::vector<int64_t>{p.whole_numel() / kind.elements, kind.values},
            kind.dtype};
}

CheckpointTensor tensor_of(const StateKind& kind, const Parameter& p, std::vector<int64_t> shape) {
    return {std::string(kind.name) + "/" + p.name, std::move(shape), kind.dtype};
}

CheckpointTensor tensor_of(const KeptScale& scale) {
    return {"scale/" + scale.name, {1}, DType::f32};
}

// Number of state values for `elements` elements of a parameter.
int64_t scaled(int64_t elements, const StateKind& kind, const Parameter& p) {
    if (elements % kind.elements != 0) {
        throw_internal("state {} of {}: a piece of {} elements, not a multiple of {}", kind.name, p.name,
                       elements, kind.elements);
    }
    return elements / kind.elements * kind.values;
}

// Returns the location of a piece's state in the whole parameter's state. Columns cut over the tensor axis yield one
// box with several rows; other blocks yield one run per row.
std::vector<Box> boxes_in_whole(const StateKind& kind, const Piece& piece) {
    const Parameter& p = *piece.parameter;
    if (!kind.per_element()) {
        if (!p.cut.all())
            throw_internal("state {} of {}: per-matrix state of a tensor-parallel parameter", kind.name,
                           p.name);
        return {
            Box::of({scaled(piece.in_parameter.begin, kind, p), scaled(piece.in_parameter.count, kind, p)})};
    }
    std::vector<Box> boxes = p.boxes(piece.in_parameter);
    if (p.cut.dimension == 1) return boxes;
    std::vector<Box> runs;
    for (const Range& range : contiguous_ranges(boxes)) runs.push_back(Box::of(range));
    return runs;
}

}  // namespace

std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table,
                                                 const OptimizersConfig& config) {
    const std::vector<int> group_of = assign_groups(table, config);
    std::vector<CheckpointTensor> tensors;
    for (const Parameter& p : table.all()) {
        const OptimizerGroupConfig& group = config.groups[static_cast<size_t>(group_of[p.id])];
        tensors.push_back(tensor_of({.name = "master", .dtype = group.weights_dtype()}, p));
        for (StateTensor& state : state_tensors(group, p))
            tensors.push_back(tensor_of(state.kind, p, std::move(state.shape)));
    }
    for (const KeptScale& scale : table.scales()) tensors.push_back(tensor_of(scale));
    return tensors;
}

std::vector<StatePiece> state_pieces(const ShardedState& state, const Bucket& bucket) {
    std::vector<StatePiece> pieces;
    for (const StateShard& shard : state.shards(bucket)) {
        if (shard.parameter) {
            pieces.push_back({tensor_of(shard.kind, *shard.parameter, shard.shape),
                              {Box::of({shard.begin, shard.values.numel()})},
                              shard.values});
            continue;
        }
        for (const Piece& piece : state.layout().shard_pieces(bucket)) {
            const Parameter& p = *piece.parameter;
            const std::vector<Box> boxes = boxes_in_whole(shard.kind, piece);
            int64_t count = 0;  // excludes padding at the end of a part
            for (const Box& box : boxes) count += box.count();
            if (count == 0) continue;
            pieces.push_back({tensor_of(shard.kind, p), boxes,
                              elements(shard.values, {scaled(piece.in_shard, shard.kind, p), count})});
        }
    }
    return pieces;
}

std::vector<StatePiece> state_pieces(const ScaleStore& scales) {
    std::vector<StatePiece> pieces;
    for (const KeptScale& scale : scales.all())
        pieces.push_back(
            {tensor_of(scale), {Box::of({0, 1})}, scales.scale(static_cast<int>(pieces.size()))});
    return pieces;
}

bool writes_bucket(const Ranks& ranks, const Bucket& bucket) {
    const Copies copies = copies_of(bucket, ranks);
    return bucket.id % copies.count == copies.index;
}

}  // namespace speedrun
