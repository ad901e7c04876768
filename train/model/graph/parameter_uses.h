// Derives from the graph which units read each parameter in which pass, and over which dimensions its gradient sums.
// The former order the gathers and updates of buckets. The latter determine the placement of the gradient on each mesh
// axis.
#pragma once

#include "train/model/graph/graph.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

// Sets Parameter::uses and Parameter::summed, and the table's number of units. Throws an internal error for a parameter
// that no node uses.
//
// A gradient sums over every dimension of the outputs of the nodes that use the parameter, except the parameter's own.
// For y[t, o] = Σ_i W[o, i] x[t, i] + b[o], the gradients of W and b sum over the tokens t. For y[t, h] = λ v[t, h],
// that of λ sums over tokens and heads. If a node's output is a function of parameters alone, such as σ(λ), its
// gradient sums over the dimensions of its readers' outputs. Gradients of all other values are complete before a node
// reads them.
void note_parameter_uses(const NodeGraph& graph, ParameterTable& table);

}  // namespace speedrun
