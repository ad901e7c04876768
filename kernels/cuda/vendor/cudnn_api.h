// Interface to cuDNN: graphs of attention, built once per shape. Only cudnn_graphs.cpp includes cuDNN's
// headers. A build without them has no_cudnn.cpp instead; tests have a fake.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/vendor/attention_library.h"

namespace speedrun {

// Tensors of a graph; the values are cuDNN's uids.
enum CudnnTensor : int { kQ, kK, kV, kO, kLse, kDout, kDq, kDk, kDv, kCudnnTensors };

using CudnnDims = std::array<int64_t, 4>;  // cuDNN's order: batch, heads, sequence, head size

// Attention of one shape in cuDNN's terms: causal, optionally with a window. Its batch is our head and its
// head our sequence; attention treats both alike. So our lse [H,T] is the packed [batch,heads,S,1] that
// backward requires of its statistics before 9.26 (cudnn-frontend 1.32,
// node/scaled_dot_product_flash_attention.h). All strides count elements.
struct CudnnProblem {
    bool backward = false;
    CudnnDims shape{};                             // H, B, S, D of q, k, v, o and their gradients
    std::array<CudnnDims, kCudnnTensors> strides;  // zeros: not in this graph
    int64_t window = 0;                            // maximum keys that a query sees; 0: no limit
    float scale = 1.0f;

    CudnnDims dims_of(CudnnTensor tensor) const;
    std::string key() const;
    // Scratch memory of a graph, computed without cuDNN, so that a memory plan does not need the library. The
    // deterministic backward keeps dP, bf16 [H,B,S,S] in whole tiles, and row sums, f32 [H,B,S] (same file).
    // tests/cuda/cudnn_graph_test.cpp checks it against cuDNN. 1 MiB is for other needs of the kernels.
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
    // Null, with the reason in `why`, if cuDNN has no kernel.
    virtual std::unique_ptr<CudnnGraph> make_graph(const CudnnProblem& problem, std::string& why) = 0;
};

// Loads libcudnn.so.9 from the loader's search path, for the current GPU with this compute capability (90 for
// 9.0). Null, with the reason in `why`, if it is unavailable.
std::unique_ptr<CudnnApi> load_cudnn(int compute_capability, std::string& why);
// Loads it for a GPU that may be absent. `properties`: JSON in cuDNN's format
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, cuDNN 9.8). Its graphs can be planned but not executed.
std::unique_ptr<CudnnApi> load_cudnn_for(const std::string& properties, int compute_capability,
                                         std::string& why);

// api may be null only on a dry device.
std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::unique_ptr<CudnnApi> api);

}  // namespace speedrun
