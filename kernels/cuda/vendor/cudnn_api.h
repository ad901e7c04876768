// What is used of cuDNN: graphs of attention, made ready once per shape. The only code that includes cuDNN's
// headers is cudnn_graphs.cpp; a build without them has no_cudnn.cpp instead, tests have a stand-in.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/vendor/attention_library.h"

namespace speedrun {

// The tensors of a graph; their numbers are cuDNN's uids.
enum CudnnTensor : int { kQ, kK, kV, kO, kLse, kDout, kDq, kDk, kDv, kCudnnTensors };

using CudnnDims = std::array<int64_t, 4>;  // cuDNN's order: batch, heads, sequence, head size

// Attention of one shape as cuDNN is told of it: causal, and within a window if there is one. Its batch is
// our head and its head our sequence: attention treats both alike, and so our lse [H,T] is the packed
// [batch,heads,S,1] that the backward wants of its statistics before 9.26 (cudnn-frontend 1.32,
// node/scaled_dot_product_flash_attention.h). All strides count elements.
struct CudnnProblem {
    bool backward = false;
    CudnnDims shape{};                             // H, B, S, D of q, k, v, o and their gradients
    std::array<CudnnDims, kCudnnTensors> strides;  // zeros: not of this graph
    int64_t window = 0;                            // keys that a query sees at most; 0: no limit
    float scale = 1.0f;

    CudnnDims dims_of(CudnnTensor tensor) const;
    std::string key() const;
    // What is kept for a graph's scratch, known without asking cuDNN, so that a plan of memory needs none.
    // The deterministic backward keeps dP, bf16 [H,B,S,S] in whole tiles, and row sums, f32 [H,B,S] (same
    // file); tests/cuda/cudnn_graph_test.cpp holds this to what cuDNN asks for. 1 MiB is for what kernels
    // want besides.
    int64_t workspace_bytes() const;
};

using CudnnPointers = std::array<void*, kCudnnTensors>;

class CudnnGraph {
  public:
    virtual ~CudnnGraph() = default;
    virtual int64_t workspace_bytes() const = 0;
    // Enqueues the work; allocates no device memory, so that it can be captured.
    virtual void execute(const CudnnPointers& pointers, void* workspace, cudaStream_t stream) = 0;
};

class CudnnApi {
  public:
    virtual ~CudnnApi() = default;
    // Null, with the reason in `why`, where cuDNN has no kernel.
    virtual std::unique_ptr<CudnnGraph> make_graph(const CudnnProblem& problem, std::string& why) = 0;
};

// libcudnn.so.9, looked for where the loader looks, opened for the current GPU, whose compute capability is
// given (90 for 9.0). Null, with the reason in `why`, if it is not to be had.
std::unique_ptr<CudnnApi> load_cudnn(int compute_capability, std::string& why);
// Loads it for a GPU that need not be there: `properties` as cuDNN writes them down
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, cuDNN 9.8). Its graphs are planned, and cannot be executed.
std::unique_ptr<CudnnApi> load_cudnn_for(const std::string& properties, int compute_capability,
                                         std::string& why);

// Null api only on a dry device.
std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::unique_ptr<CudnnApi> api);

}  // namespace speedrun
