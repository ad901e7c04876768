#include "kernels/device/error.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

Backend make_cuda_backend() {
    throw_usage("this op_bench was built without CUDA: configure with -DSPEEDRUN_CUDA=ON");
}

}  // namespace speedrun::bench
