// What CudaOps asks of a library for matrix products. Without one, or where it says no, the hand-written
// kernels of matmul.cu serve.
#pragma once

#include <memory>
#include <string>

#include "kernels/ops/ops.h"

namespace speedrun {

class MatmulLibrary {
  public:
    virtual ~MatmulLibrary() = default;
    // Do what the methods of Ops do, sizes and types already checked. Return false, with nothing enqueued, if
    // there is no kernel for this product.
    virtual bool matmul(const op::Matmul& a, Stream& stream) = 0;
    virtual bool scaled_matmul(const op::ScaledMatmul& a, Stream& stream) = 0;
};

struct CublasLtOptions {
    bool tune =
        true;  // time the heuristic's algorithms on the first use of each shape; otherwise take its first
    // File that keeps what was chosen, so that the next run chooses the same without timing; "" keeps
    // nothing.
    std::string cache_file;
};

// cuBLASLt, found at run time. Null, with the reason in `why`, where it cannot be had. On a dry device
// nothing is loaded, and only its workspaces are entered in the memory table.
std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             std::string& why);

// Where a cache file belongs: $SPEEDRUN_CACHE_DIR, $XDG_CACHE_HOME/speedrun or ~/.cache/speedrun; "" if there
// is none.
std::string cache_folder();

}  // namespace speedrun
