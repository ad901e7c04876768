// Extents of a model's values and parameters on one rank: the part of this rank where the tensor axis splits a dimension.
#pragma once

#include <initializer_list>
#include <optional>

#include "train/config/config.h"
#include "train/model/model_graph.h"
#include "train/model/nodes/chunk_borders.h"

namespace speedrun {

class ModelExtents {
  public:
    ModelExtents(const ModelConfig& config, const BatchShape& batch)
        : batch_(batch), width_(config.model_dim), padded_vocab_size_(config.padded_vocab_size()) {}

    Extent tokens() const { return {Dimension::tokens, batch_.local_tokens()}; }
    Extent own_tokens() const { return {Dimension::own_tokens, batch_.own_tokens()}; }
    // Rows of the residual stream.
    Extent stream_tokens() const { return batch_.tensor.sequence ? own_tokens() : tokens(); }
    Extent width() const { return {Dimension::width, width_}; }
    Extent vocabulary() const { return cut({Dimension::vocabulary, padded_vocab_size_}); }
    int64_t padded_vocab_size() const { return padded_vocab_size_; }
    // Returns this rank's part of the columns of all heads, in stacks of these sizes (q, k, v). whole: not split.
    Extent head_width(std::initializer_list<int64_t> stacks, bool whole) const;
    // Returns this rank's part of the extent. The last rank's part of a vocabulary may end in padding. Throws an internal error if
    // another dimension does not divide.
    Extent cut(Extent whole) const;
    // Returns the borders of rows that context ranks share; nullopt if a rank has whole rows.
    std::optional<ChunkBorders::Options> chunk_borders(const Extent& columns) const;

  private:
    const BatchShape batch_;
    const int64_t width_, padded_vocab_size_;
};

}  // namespace speedrun
