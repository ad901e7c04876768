// Peaks of kernels/ops/peaks.h on a bench's device, including library matmuls.
#pragma once

#include <string>

#include "kernels/ops/peaks.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

struct BackendPeaks : Peaks {
    bool library_product = false;  // false: only our own kernel was tried, so shares are too high
};

// `warning` names a probe that fails. shrink divides the sizes, for dry runs.
BackendPeaks measure_backend(Backend& backend, Stream& stream, DType compute_dtype, int64_t shrink,
                             std::string& warning);

}  // namespace speedrun::bench
