// What sharding needs to know of each parameter, and the graph says: which units read it in which pass, by which it is
// gathered and stepped, and over which dimensions its gradient sums, from which the placement of the gradient
// follows on every axis of a mesh.
#pragma once

#include "train/model/graph/graph.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

// Writes them into the table (Parameter::uses, Parameter::summed), and how many units there are. Throws an internal
// error for a parameter that no node uses.
//
// A gradient sums over every dimension of what the nodes that use the parameter write, but for those that it has
// itself: for y[t, o] = Σ_i W[o, i] x[t, i] + b[o] these are the tokens t, of W as of b; for y[t, h] = λ v[t, h]
// tokens and heads. Where a node writes a function of parameters alone, such as σ(λ), what sums is the gradient of that,
// over the dimensions of what its readers write. Gradients of all other values are whole before a node takes them.
void note_parameter_uses(const NodeGraph& graph, ParameterTable& table);

}  // namespace speedrun
