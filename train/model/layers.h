// Context of parts that stand alone in the graph: writer, input and output.
#pragma once

#include "train/model/graph_writer.h"

namespace speedrun {

struct MlpLayer {
    GraphWriter& w;
    ValueId normed;          // (stream_tokens, width)
    ValueId out = kNoValue;  // (stream_tokens, width), set by the part
};

struct HeadLayer {
    GraphWriter& w;
    const ModelConfig& config;
    const LossConfig& loss;
    ValueId x;           // (tokens, width), normed
    ParameterId table;   // tied table, or kNoParameter
    int64_t logit_rows;  // rows of a chunk of logits
};

}  // namespace speedrun
