// cuBLASLt as a ceiling for matrix products: loaded when the program runs, so that op_bench starts without
// it.
#pragma once

#include "tests/bench/backend.h"

namespace speedrun::bench {

// run() throws where the library cannot be loaded or refuses a call, saying which.
ProductProbe cublaslt_probe(Device& device);

}  // namespace speedrun::bench
