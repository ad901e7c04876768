// CudaOps: the operations of kernels/ops/ops.h as hand-written CUDA kernels. One .cu per operation family,
// same stem as its CPU twin. Under SPEEDRUN_SIMT the same class runs on a device of tests/simt.
//
// What the host cannot see without waiting cannot throw: an index outside its table gives NaN (embedding
// forward, cross-entropy) or is left out (sort_ids and embedding backward); foreign memory is never touched.
#pragma once

#include <memory>

#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/vendor/attention_library.h"
#include "kernels/cuda/vendor/matmul_library.h"
#include "kernels/ops/ops.h"

namespace speedrun {

class CudaOps final : public Ops {
  public:
    // The libraries take the matrix products and the attention that they can, ahead of the hand-written
    // kernels; either may be null.
    explicit CudaOps(Device& device, std::unique_ptr<MatmulLibrary> library = nullptr,
                     std::unique_ptr<AttentionLibrary> attention = nullptr);
    ~CudaOps() override;

    int64_t flops() const override { return flops_; }
    std::vector<std::string> notes() const override;

  private:
    SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP)

    // Scratch memory of at least this many bytes for work on this stream, aligned to 256; one piece per
    // stream, used by one operation at a time, holding nothing from one call to the next. Grows (and then
    // waits for the stream) only while shapes are new. Under SPEEDRUN_SIMT each call poisons it.
    void* workspace(Stream& stream, int64_t bytes);
    // The gradients of gain and bias, where they are wanted. norm.cu.
    void norm_parameters(Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                         bool accumulate, NormKind kind, Stream& stream);
    // Gradients of coefficients that are one number, from the sums of blocks, partial[j][block]. weighted_sum.cu.
    void finish_coefficients(const op::WeightedSumBackward& a, const float* partial, int64_t blocks,
                             Stream& stream);
    // The start of polar_express, in place: every matrix of x (real [n,R,C]) over 1.02·‖X‖_F + epsilon. Uses the
    // workspace of the stream. muon.cu.
    void polar_normalize(Tensor x, float epsilon, Stream& stream);

    std::unique_ptr<MatmulLibrary> library_;
    std::unique_ptr<AttentionLibrary> attention_;
    StreamMemory workspaces_;
    int64_t flops_ = 0;
};

// The operations on a CUDA device (or on one of tests/simt), which must outlive them.
std::unique_ptr<Ops> make_cuda_ops(Device& device, std::unique_ptr<MatmulLibrary> library = nullptr,
                                   std::unique_ptr<AttentionLibrary> attention = nullptr);

namespace cuda {

// Calls body.template operator()<Real>() with the C++ type of a real dtype.
template <class Body>
void with_real(DType dtype, Body&& body) {
    if (dtype == DType::f32) return body.template operator()<float>();
    if (dtype == DType::bf16) return body.template operator()<Bf16>();
    throw_internal("a real (f32 or bf16) tensor is needed, not {}", name_of(dtype));
}

// Calls body.template operator()<W>() with the elements of this type that a thread handles at once.
template <class Real, class Body>
void with_width(bool aligned, Body&& body) {
    if (aligned) return body.template operator()<16 / static_cast<int>(sizeof(Real))>();
    return body.template operator()<1>();
}

}  // namespace cuda
}  // namespace speedrun
