// Times one case, checks what it wrote, and compares it with its floor.
#pragma once

#include <string>

#include "tests/bench/cases.h"
#include "tests/bench/ceilings.h"
#include "tests/bench/recording_ops.h"

namespace speedrun::bench {

struct Measurement {
    Timing timing;
    int sets = 0;         // of tensors, in rotation
    int64_t bytes = 0;    // least moved by one call
    std::string failure;  // empty: all outputs were written and are finite
};

// A failure of the operation (thrown, or unwritten or non-finite outputs) is an answer, not an exception.
Measurement run_case(const Case& c, Backend& backend, Stream& stream, Timer& timer, DType real,
                     const TimingOptions& options);

struct Floor {
    double ms = 0;
    bool compute_bound = false;
};
Floor floor_of(double flops, int64_t bytes, const Ceilings& ceilings);
// Milliseconds that the expectation means for this case.
double expected_ms(const Published& published, double flops, const Floor& floor);

}  // namespace speedrun::bench
