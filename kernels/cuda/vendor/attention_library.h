// Interface between CudaOps and attention by a library or by kernels for one GPU architecture. Fallback: the
// kernels of attention.cu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun {

class AttentionLibrary {
  public:
    virtual ~AttentionLibrary() = default;
    // Like Ops::attention_forward and attention_backward, with sizes and types already checked. Return false,
    // with nothing enqueued, if there is no kernel for the call.
    virtual bool forward(const op::AttentionForward& a, Stream& stream) = 0;
    virtual bool backward(const op::AttentionBackward& a, Stream& stream) = 0;
    // As Ops::fuses_rotary(). False: calls have no RotaryOfInputs.
    virtual bool fuses_rotary(HeadWidths /*widths*/, DType /*compute_dtype*/) const { return false; }
    // Reasons for which calls were left to the hand-written kernels, one sentence per reason so far.
    virtual std::vector<std::string> notes() const = 0;
};

// True if this build can use cuDNN: the headers of cudnn-frontend were found.
bool built_with_cudnn();

// cuDNN, loaded at run time. Null, with the reason in `why`, if it is not available. A dry device loads
// nothing and only enters the workspaces in the memory table.
std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::string& why);

// Our kernels for GPUs of compute capability 9.0 (ops/attention_wgmma.cu), compiled for sm_90a.
std::unique_ptr<AttentionLibrary> make_wgmma_attention(Device& device);

}  // namespace speedrun
