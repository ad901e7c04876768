// Parts of a model whose gradients are zero at the start and for ever.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// A product of two factors has the gradients (dy·b, dy·a): where both start at zero, neither is ever anything else. One sentence,
// with keys, for each pair of matrices of which that is true:
// - all tables of model.input, without which the stream is zero at the head, and the head's matrix or table;
// - the two matrices of an MLP, whose activations are zero at zero (relu_squared: the first alone, since it is flat there);
// - the output matrix of attention, and all that its values are made of;
// - the factor of a sublayer's output in its sum, and one of its matrices;
// - both matrices of a network;
// - a table, and its factor in every sum.
// Empty: everything can learn, as far as initial values go.
std::vector<std::string> parts_that_cannot_learn(const ModelConfig& model);

}  // namespace speedrun
