// The ceilings of kernels/ops/ceilings.h on a bench's device, with products from elsewhere among those tried.
#pragma once

#include <string>

#include "kernels/ops/ceilings.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

struct BackendCeilings : Ceilings {
    bool library_product = false;  // false: only our own kernel was tried, so shares of it flatter
};

// A probe that fails is named in `warning`. shrink divides the sizes, for rehearsal.
BackendCeilings measure_backend(Backend& backend, Stream& stream, DType real, int64_t shrink,
                                std::string& warning);

}  // namespace speedrun::bench
