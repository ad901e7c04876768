#include "tests/bench/cublaslt_probe.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <memory>
#include <string>

#include "kernels/cuda/cuda_device.h"

namespace speedrun::bench {

namespace {

constexpr int64_t kWorkspaceBytes = 64 << 20;

void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) throw_internal("{}: status {}", call, static_cast<int>(status));
}

// The functions that a product needs, with the types that the header declares.
#define SPEEDRUN_EACH_CUBLASLT_FUNCTION(X) \
    X(cublasLtCreate)                      \
    X(cublasLtMatmulDescCreate)            \
    X(cublasLtMatmulDescSetAttribute)      \
    X(cublasLtMatrixLayoutCreate)          \
    X(cublasLtMatmulPreferenceCreate)      \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)

struct Library {
#define SPEEDRUN_DECLARE(name) decltype(&::name) name = nullptr;
    SPEEDRUN_EACH_CUBLASLT_FUNCTION(SPEEDRUN_DECLARE)
#undef SPEEDRUN_DECLARE

    Library() {
        const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
        void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // until the process ends
        if (!handle) throw_internal("{}", dlerror());
#define SPEEDRUN_LOAD(name)                                        \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, #name)); \
    if (!name) throw_internal("{} has no {}", file, #name);
        SPEEDRUN_EACH_CUBLASLT_FUNCTION(SPEEDRUN_LOAD)
#undef SPEEDRUN_LOAD
    }
};

// One product c = a bᵀ, planned at its first call. The library counts columns first: to it our c, a and b are
// their transposes, so it computes cᵀ = b aᵀ. Its handles live as long as the process.
class Product {
  public:
    explicit Product(Device& device)
        : workspace_(device, "cublasLt", MemoryCategory::workspace, kWorkspaceBytes) {}

    void run(Tensor c, Tensor a, Tensor b, Stream& stream) {
        if (!planned_) plan(c, a, b);
        const float one = 1.0f, zero = 0.0f;
        check(
            library_.cublasLtMatmul(handle_, description_, &one, b.data, layout_b_, a.data, layout_a_, &zero,
                                    c.data, layout_c_, c.data, layout_c_, &algorithm_, workspace_.data(),
                                    kWorkspaceBytes, static_cast<CudaStream&>(stream).handle()),
            "cublasLtMatmul");
    }

  private:
    cublasLtMatrixLayout_t layout_of(const Tensor& tensor) {
        cublasLtMatrixLayout_t layout = nullptr;
        check(library_.cublasLtMatrixLayoutCreate(&layout,
                                                  tensor.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                                  static_cast<uint64_t>(tensor.cols()),
                                                  static_cast<uint64_t>(tensor.rows()), tensor.row_stride),
              "cublasLtMatrixLayoutCreate");
        return layout;
    }

    void plan(const Tensor& c, const Tensor& a, const Tensor& b) {
        check(library_.cublasLtCreate(&handle_), "cublasLtCreate");
        check(library_.cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
        const cublasOperation_t transpose = CUBLAS_OP_T;
        check(library_.cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                      sizeof transpose),
              "cublasLtMatmulDescSetAttribute");
        layout_a_ = layout_of(a);
        layout_b_ = layout_of(b);
        layout_c_ = layout_of(c);
        cublasLtMatmulPreference_t preference = nullptr;
        check(library_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
        const uint64_t workspace = kWorkspaceBytes;
        check(library_.cublasLtMatmulPreferenceSetAttribute(
                  preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
              "cublasLtMatmulPreferenceSetAttribute");
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        check(library_.cublasLtMatmulAlgoGetHeuristic(handle_, description_, layout_b_, layout_a_, layout_c_,
                                                      layout_c_, preference, 1, &result, &found),
              "cublasLtMatmulAlgoGetHeuristic");
        if (found == 0) throw_internal("cublasLt knows no algorithm for this product");
        algorithm_ = result.algo;
        planned_ = true;
    }

    Library library_;
    Buffer workspace_;
    bool planned_ = false;
    cublasLtHandle_t handle_ = nullptr;
    cublasLtMatmulDesc_t description_ = nullptr;
    cublasLtMatrixLayout_t layout_a_ = nullptr, layout_b_ = nullptr, layout_c_ = nullptr;
    cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

ProductProbe cublaslt_probe(Device& device) {
    auto product = std::make_shared<std::unique_ptr<Product>>();
    return {"cublasLt", [&device, product](Tensor c, Tensor a, Tensor b, Stream& stream) {
                if (!*product) *product = std::make_unique<Product>(device);
                (*product)->run(c, a, b, stream);
            }};
}

}  // namespace speedrun::bench
