// Peaks of kernels/ops/ceilings.h on a bench's device, including library matmuls.
#pragma once

#include <string>

#include "kernels/ops/ceilings.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

struct BackendCeilings : Ceilings {
    bool library_product = false;  // false: only our own kernel was tried, so shares are too high
};

// `warning` names a probe that fails. shrink divides the sizes, for dry runs.
BackendCeilings measure_backend(Backend& backend, Stream& stream, DType real, int64_t shrink,
                                std::string& warning);

}  // namespace speedrun::bench
