// Times one case, checks what it wrote, and compares it with its floor.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kernels/ceilings.h"
#include "kernels/metered_ops.h"
#include "tests/bench/backend.h"
#include "tests/bench/cases.h"
#include "tests/bench/timing.h"

namespace speedrun::bench {

struct Measurement {
    Timing timing;
    int sets = 0;         // of tensors, in rotation
    int64_t bytes = 0;    // least moved by one call, as the case's tensors were handed out
    OpCost cost;          // of one call, as MeteredOps tells it from the arguments
    std::string failure;  // empty: all outputs were written and are finite
};

// A failure of the operation (thrown, or unwritten or non-finite outputs) is an answer, not an exception.
Measurement run_case(const Case& c, Backend& backend, Stream& stream, Timer& timer, DType real,
                     const TimingOptions& options);

// Of all_operations(), those that are not in `timed`.
std::vector<std::string> operations_without_case(const std::set<std::string>& timed);

// Milliseconds that the expectation means for this case.
double expected_ms(const Published& published, double flops, const Floor& floor);

}  // namespace speedrun::bench
