// Interface between CudaOps and a matmul library. Fallback: the hand-written kernels of matmul.cu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun {

class MatmulLibrary {
  public:
    virtual ~MatmulLibrary() = default;
    // Like the methods of Ops, with sizes and types already checked. Epilogues are left out. Return false,
    // with nothing enqueued, if there is no kernel for the matmul.
    virtual bool matmul(const op::Matmul& a, Stream& stream) = 0;
    virtual bool scaled_matmul(const op::ScaledMatmul& a, Stream& stream) = 0;
    // Matmuls that were left to the hand-written kernels, one sentence per shape so far.
    virtual std::vector<std::string> notes() const = 0;
};

struct CublasLtOptions {
    bool tune =
        true;  // time the heuristic's algorithms on the first use of each shape; otherwise take its first one
    // Stores the choices, so that the next run makes the same ones without timing; "" stores nothing.
    std::string cache_file;
};

// cuBLASLt, loaded at run time. Null, with the reason in `why`, if it is not available. A dry device loads
// nothing and only enters the workspaces in the memory table.
std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             std::string& why);

// Folder of cache files: $SPEEDRUN_CACHE_DIR, $XDG_CACHE_HOME/speedrun or ~/.cache/speedrun; "" if there is
// none.
std::string cache_folder();

}  // namespace speedrun
