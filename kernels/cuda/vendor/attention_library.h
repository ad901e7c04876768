// What CudaOps asks of a library for attention, or of kernels for one GPU alone. Without one, or where it says no,
// the kernels of attention.cu serve.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun {

class AttentionLibrary {
  public:
    virtual ~AttentionLibrary() = default;
    // Do what Ops::attention_forward and attention_backward do, sizes and types already checked. Return
    // false, with nothing enqueued, if there is no kernel for this attention.
    virtual bool forward(const op::AttentionForward& a, Stream& stream) = 0;
    virtual bool backward(const op::AttentionBackward& a, Stream& stream) = 0;
    // Why something was left to the hand-written kernels, one sentence for each reason met so far.
    virtual std::vector<std::string> notes() const = 0;
};

// Can this build use cuDNN at all? Only where the headers of cudnn-frontend were found.
bool built_with_cudnn();

// cuDNN, found at run time. Null, with the reason in `why`, where it cannot be had. On a dry device nothing
// is loaded, and only its workspaces are entered in the memory table.
std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::string& why);

// Our kernels for GPUs of compute capability 9.0 (ops/attention_wgmma.cu). Their code is in programs compiled for
// sm_90a.
std::unique_ptr<AttentionLibrary> make_wgmma_attention(Device& device);

}  // namespace speedrun
