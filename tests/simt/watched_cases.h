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

struct WatchedCase {
    bench::Case c;
    DType real;
    bool wgmma = false;  // attention by the kernels for compute capability 9.0 alone
    std::string title() const;
};
// All of these in this type, and where wgmma serves once more with it.
std::vector<WatchedCase> watched(const std::vector<bench::Case>& cases, DType real);

// Runs one case once, watched from the call of the operation to its end, and returns the least bytes that it
// moves. Throws what the watch throws.
int64_t run_watched(const WatchedCase& watched_case, Watch& watch, Options options = {});

}  // namespace speedrun::simt
