// What this device can do at best, measured in the same run: a big copy and a big matrix product.
#pragma once

#include <string>

#include "tests/bench/backend.h"
#include "tests/bench/timing.h"

namespace speedrun::bench {

struct Ceilings {
    double bytes_per_s = 0, flops_per_s = 0;
    std::string copy_by, product_by;  // the fastest of those tried, with sizes
    bool library_product = false;     // false: only our own kernel was tried, so shares of it flatter
};

// Takes the best of the device's copy and the operation cast, and of matmul and every probe that runs; a
// probe that fails is named in `warning`. shrink divides the sizes, for rehearsal.
Ceilings measure_ceilings(Backend& backend, Stream& stream, Timer& timer, DType real, int64_t shrink,
                          std::string& warning);

}  // namespace speedrun::bench
