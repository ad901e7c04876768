// Every operation of kernels/ops/ops.h as in tests/bench, with shapes small enough to execute thread by
// thread, under a watch.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/cases.h"
#include "tests/simt/watch.h"

namespace speedrun::simt {

// Both models with heads of 64 and 128; all sizes are multiples of 32 bytes, as in the 124M models.
bench::Shapes watched_shapes();
// Sizes that divide nothing, small enough for a run of milliseconds.
bench::Shapes tiny_shapes();

struct WatchedCase {
    bench::Case c;
    DType compute_dtype;
    bool wgmma = false;  // attention by the kernels for compute capability 9.0
    std::string title() const;
};
// All cases in this type, and again with wgmma if it supports them.
std::vector<WatchedCase> watched(const std::vector<bench::Case>& cases, DType compute_dtype);

// Runs one case once, watched from the call of the operation to its end, and returns its minimum bytes moved.
// Rethrows the watch's exceptions.
int64_t run_watched(const WatchedCase& watched_case, Watch& watch, Options options = {});

}  // namespace speedrun::simt
