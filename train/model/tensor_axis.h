// Redistribution of values over the tensor axis (Redistribute). With one tensor rank each function returns its argument.
#pragma once

#include "train/model/graph_writer.h"

namespace speedrun {

ValueId into_matrices(GraphWriter& w, ValueId x);  // input of column-parallel matrices: all rows
ValueId into_whole(GraphWriter& w, ValueId x);     // input of replicated compute: all rows
// Sum of the ranks' terms: in the stream, or replicated.
ValueId into_stream(GraphWriter& w, ValueId terms);
ValueId everywhere(GraphWriter& w, ValueId terms);
// Replicated values: in the stream, and as terms of a sum.
ValueId shared_out(GraphWriter& w, ValueId x);
ValueId as_term(GraphWriter& w, ValueId x);

}  // namespace speedrun
