// Every operation of kernels/ops/ops.h as tests/bench times it, at shapes small enough to execute thread by
// thread, under a watch.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/cases.h"
#include "tests/simt/watch.h"

namespace speedrun::simt {

// Both models with heads of 64 and 128, all sizes multiples of 32 bytes, as those of the 124M models are.
bench::Shapes watched_shapes();
// Sizes that divide nothing, small enough for one run to take milliseconds.
bench::Shapes tiny_shapes();

// Runs one case once, watched from the call of the operation to its end, and returns the least bytes that it
// moves. Throws what the watch throws.
int64_t run_watched(const bench::Case& c, DType real, Watch& watch, Options options = {});

}  // namespace speedrun::simt
