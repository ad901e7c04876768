// What ranks of the tensor axis cannot share by heads: each of them has and computes it whole.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "train/config/model_parts.h"

namespace speedrun {

// Attention that mixes heads, or adds or reads columns of all of a row, is whole; so is a table of values that such
// attention reads, or whose rows the output adds, and then all attention that reads the table.
struct WholeAttention {
    std::map<int64_t, std::string> layers;  // why, in a few words
    std::set<std::string> tables;

    // "attention of layers 0, 2 (paired), 1 (value_gate), table values"; layers of one reason together. For people.
    std::string describe() const;
};
WholeAttention whole_attention(const ModelParts& parts);

}  // namespace speedrun
