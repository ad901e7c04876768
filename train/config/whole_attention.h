// Attention that the tensor axis does not cut by heads: each rank stores and computes all heads.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "train/config/model_parts.h"

namespace speedrun {

// Attention is whole if it mixes heads, or if it adds or reads columns of all heads. A value table is whole if such attention reads
// it or the output adds its rows; then all attention that reads the table is whole.
struct WholeAttention {
    std::map<int64_t, std::string> layers;  // reason, by layer
    std::set<std::string> tables;

    // Returns "attention of layers 0, 2 (paired), 1 (value_gate), table values", with layers grouped by reason.
    std::string describe() const;
};
WholeAttention whole_attention(const ModelParts& parts);

}  // namespace speedrun
