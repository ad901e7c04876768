// Context of parts that stand alone in the graph: writer, input and output.
#pragma once

#include <map>
#include <vector>

#include "train/model/networks.h"
#include "train/model/token_tables.h"

namespace speedrun {

struct MlpLayer {
    GraphWriter& w;
    ValueId normed;          // (stream_tokens, width)
    ValueId out = kNoValue;  // (stream_tokens, width), set by the part
};

struct SumLayer {
    GraphWriter& w;
    Networks& networks;
    TokenTables& tables;
    const std::map<int64_t, ValueId>& places;  // outputs of earlier layers, by StreamPlace::after
    ValueId stream;                            // (stream_tokens, width)
    ValueId output = kNoValue;                 // output of the sublayer before the sum
    std::vector<WeightedSum::Term> terms = {};
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
