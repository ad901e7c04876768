// The model's graph as shown by `speedrun plan`.
#pragma once

#include <string>

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/engine/node_work.h"
#include "train/model/graph/layer_table.h"
#include "train/model/graph/memory_peak.h"
#include "train/model/model_graph.h"

namespace speedrun {

// Returns the graph that a run builds.
ModelGraph model_graph(const Config& config);

// One entry per layer; equal layers are folded.
std::string layers_text(const Config& config);

// Computation and memory traffic of each kind of node in a step of one rank.
std::string node_work_text(const std::vector<NodeWork>& work);

// The step's total and the five kinds with the largest share.
std::string memory_peak_text(const MemoryPeak& busiest);

// Writes options.graph in Graphviz's language. Usage error for an absent unit, another ending than .dot or .gv, and a file that
// cannot be written. Returns the exit code.
int write_unit_picture(const PlanOptions& options, const Config& config);

}  // namespace speedrun
