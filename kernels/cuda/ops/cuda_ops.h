// CudaOps: the operations of kernels/ops/ops.h as hand-written CUDA kernels. One .cu per operation family,
// with the name of its CPU counterpart. With SPEEDRUN_SIMT the same class runs on a device of tests/simt.
//
// Errors that the host cannot detect without waiting do not throw. An index outside its table gives NaN
// (embedding forward, cross-entropy) or is skipped (sort_ids and embedding backward). Foreign memory is never
// accessed.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/vendor/attention_library.h"
#include "kernels/cuda/vendor/matmul_library.h"
#include "kernels/ops/ops.h"

namespace speedrun {

class CudaOps final : public Ops {
  public:
    // Libraries run the matmuls and the attention that they support; the hand-written kernels run the rest.
    // Each may be null.
    // wgmma_epilogues: matmuls with an epilogue run on wgmma_product() where wgmma_matmul_wins().
    explicit CudaOps(Device& device, std::unique_ptr<MatmulLibrary> library = nullptr,
                     std::unique_ptr<AttentionLibrary> attention = nullptr, bool wgmma_epilogues = false);
    ~CudaOps() override;

    int64_t flops() const override { return flops_; }
    bool fuses_rotary(HeadWidths widths, DType compute_dtype) const override {
        return attention_ && attention_->fuses_rotary(widths, compute_dtype);
    }
    std::vector<std::string> notes() const override;

  private:
    SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP)

    // Scratch memory of at least `bytes` for work on this stream, aligned to 256. One piece per stream, used
    // by one operation at a time; its contents do not survive a call. Grows (and then waits for the stream)
    // only for new shapes. With SPEEDRUN_SIMT each call poisons it.
    void* workspace(Stream& stream, int64_t bytes);
    // Runs a matmul with its epilogue on wgmma_product(). epilogue.cu. Returns false, with nothing enqueued, if it is left to others.
    template <class Arguments>
    bool by_wgmma(const Arguments& a, Stream& stream);
    // Epilogue of a matmul on its result, in place. epilogue.cu.
    void apply(const op::Epilogue& epilogue, const Tensor& c, Stream& stream);
    // As above, if it writes an FP8 form. fp8.cu.
    void apply_quantized(const op::Epilogue& epilogue, const Tensor& c, Stream& stream);
    // Gradients of gain and bias, if requested. norm.cu.
    void norm_parameters(const op::NormBackward& a, Stream& stream);
    // Gradients of scalar coefficients, from the sums of blocks, partial[j][block]. weighted_sum.cu.
    void finish_coefficients(const op::WeightedSumBackward& a, const float* partial, int64_t blocks,
                             Stream& stream);
    // First step of polar_express: out = every matrix of x (compute dtype [n,R,C]) divided by 1.02·‖X‖_F +
    // epsilon. Uses the workspace of the stream. muon.cu.
    void polar_normalize(Tensor out, Tensor x, float epsilon, Stream& stream);

    std::unique_ptr<MatmulLibrary> library_;
    std::unique_ptr<AttentionLibrary> attention_;
    const bool wgmma_epilogues_;
    StreamMemory workspaces_;
    std::set<std::string> notes_;
    int64_t flops_ = 0;
};

// Operations on a CUDA device (or on one of tests/simt), which must outlive them.
std::unique_ptr<Ops> make_cuda_ops(Device& device, std::unique_ptr<MatmulLibrary> library = nullptr,
                                   std::unique_ptr<AttentionLibrary> attention = nullptr,
                                   bool wgmma_epilogues = false);

namespace cuda {

// Calls body.template operator()<Real>() with the C++ type of a real dtype.
template <class Body>
void with_real(DType dtype, Body&& body) {
    if (dtype == DType::f32) return body.template operator()<float>();
    if (dtype == DType::bf16) return body.template operator()<Bf16>();
    throw_internal("a real (f32 or bf16) tensor is needed, not {}", name_of(dtype));
}

// Calls body.template operator()<W>() with the number of elements of this type per thread.
template <class Real, class Body>
void with_width(bool aligned, Body&& body) {
    if (aligned) return body.template operator()<16 / static_cast<int>(sizeof(Real))>();
    return body.template operator()<1>();
}

}  // namespace cuda
}  // namespace speedrun
