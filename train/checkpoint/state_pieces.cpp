#include "train/checkpoint/state_pieces.h"

#include <charconv>

#include "train/optim/groups.h"
#include "train/optim/optimizers.h"

namespace speedrun {

namespace {

CheckpointTensor tensor_of(const StateKind& kind, const Parameter& p) {
    const bool alike = kind.elements == 1 && kind.values == 1;
    return {std::string(kind.name) + "/" + p.name,
            alike ? p.shape : std::vector<int64_t>{p.numel() / kind.elements, kind.values}};
}

// Numbers of state of so many elements of a parameter.
int64_t scaled(int64_t elements, const StateKind& kind, const Parameter& p) {
    if (elements % kind.elements != 0) {
        throw_internal("{} of {}: a piece of {} elements, not a multiple of {}", kind.name, p.name, elements,
                       kind.elements);
    }
    return elements / kind.elements * kind.values;
}

}  // namespace

std::string StatePiece::name() const {
    return whole() ? tensor.name : fmt::format("{}[{}:{}]", tensor.name, begin, begin + count());
}

PieceName parse_piece_name(const std::string& name) {
    const size_t bracket = name.rfind('['), colon = name.rfind(':');
    if (name.back() != ']' || bracket == std::string::npos || colon == std::string::npos || colon < bracket)
        return {name, 0, -1};
    PieceName piece{name.substr(0, bracket), 0, 0};
    const char* text = name.data();
    const auto first = std::from_chars(text + bracket + 1, text + colon, piece.begin);
    const auto last = std::from_chars(text + colon + 1, text + name.size() - 1, piece.end);
    const bool numbers = first.ec == std::errc() && first.ptr == text + colon && last.ec == std::errc() &&
                         last.ptr == text + name.size() - 1;
    return numbers && 0 <= piece.begin && piece.begin <= piece.end ? piece : PieceName{name, 0, -1};
}

std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table,
                                                 const OptimizersConfig& config) {
    const std::vector<int> group_of = assign_groups(table, config);
    std::vector<CheckpointTensor> tensors;
    for (const Parameter& p : table.all()) {
        tensors.push_back(tensor_of({"master"}, p));
        const OptimizerGroupConfig& group = config.groups[static_cast<size_t>(group_of[p.id])];
        const int64_t rows = p.is_matrix() ? p.shape[0] / p.matrices : 0,
                      cols = p.is_matrix() ? p.shape[1] : 0;
        for (const StateKind& kind : state_kinds(group, rows, cols)) tensors.push_back(tensor_of(kind, p));
    }
    return tensors;
}

std::vector<StatePiece> state_pieces(const UpdatePipeline& updates, const Bucket& bucket) {
    std::vector<StatePiece> pieces;
    for (const StateShard& shard : updates.state(bucket)) {
        if (shard.parameter) {
            pieces.push_back({tensor_of(shard.kind, *shard.parameter), shard.begin, shard.values});
            continue;
        }
        for (const Piece& piece : updates.layout().shard_pieces(bucket)) {
            const Parameter& p = *piece.parameter;
            const int64_t at = scaled(piece.in_bucket, shard.kind, p),
                          count = scaled(piece.count, shard.kind, p);
            auto* const data = static_cast<float*>(shard.values.data);
            pieces.push_back({tensor_of(shard.kind, p), scaled(piece.in_parameter, shard.kind, p),
                              Tensor(data ? data + at : nullptr, DType::f32, {count})});
        }
    }
    return pieces;
}

bool writes_bucket(const Ranks& ranks, const Bucket& bucket) {
    const int copies = ranks.size() / bucket.num_shards;
    return bucket.id % copies == ranks.rank() / bucket.num_shards;
}

}  // namespace speedrun
