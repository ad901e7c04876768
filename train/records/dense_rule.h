// The rule `dense` of a class: a transformer defined by its weights only. Matrices of layers, and tables with one row per
// vocabulary token or per position; no rows of n-grams or hashes, no counts, no index of the training data, no pretrained
// weights.
#pragma once

#include <string>

#include "train/model/model_graph.h"

namespace speedrun {

// Returns the key of the config that breaks the rule, its value and the allowed ones, or "".
std::string dense_problem(const ModelConfig& config, int64_t longest_sequence);

// Returns the problem of a built model, independent of its config's keys, or "". Each batch input and each constant must be
// listed in this function. A table that tokens index has one row per token or per position. A new kind of table is refused
// until it is listed.
std::string dense_problem(const ModelGraph& model, int64_t padded_vocab_size);

}  // namespace speedrun
