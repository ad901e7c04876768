// Detection of parameters with a gradient that stays zero.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// The gradients of y = a·b are (dy·b, dy·a): if a and b both start at zero, both stay zero. Returns one sentence, with keys,
// for each such pair:
// - all tables of model.input, if the stream is zero at the head without them, and the head's matrix or table;
// - the two matrices of an MLP (relu_squared: the first alone, because its slope at 0 is 0);
// - the output matrix of attention, and all sources of the values;
// - the factor of a sublayer's output in its sum, and one of its matrices;
// - both matrices of a network;
// - a table, and its factor in every sum.
// Empty if no initial value keeps a gradient at zero.
std::vector<std::string> parts_that_cannot_learn(const ModelConfig& model);

}  // namespace speedrun
