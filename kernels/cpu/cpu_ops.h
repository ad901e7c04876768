// CpuOps: the operations of kernels/ops/ops.h on a CpuDevice. One .cpp per operation family, same stem as
// elsewhere.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/ops.h"

namespace speedrun {

namespace cpu {

struct GemmOptions {
    bool transpose_a = false, transpose_b = false;
    float beta = 0.0f;
    Tensor base = {};        // adds beta·base; absent: beta·c
    bool symmetric = false;  // the result is symmetric: half of the work suffices
};

// Describes c = op(a) op(b) + beta·base (+ bias); the shapes must fit. Throws an internal error with the
// label for an empty matmul.
Gemm product_of(Tensor c, Tensor a, Tensor b, Tensor bias, const GemmOptions& options, const char* label,
                Isa isa);

}  // namespace cpu

class CpuOps final : public Ops {
  public:
    CpuOps(CpuDevice& device, Isa isa);
    ~CpuOps() override;

    int64_t flops() const override { return flops_; }

  private:
    SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP)

    // Scratch memory of at least `bytes` for work on this stream. Each stream has one piece, used by one
    // operation at a time. A second piece holds intermediate results of an operation made of two. Pieces grow
    // (and then wait for the stream) only for new shapes.
    void* workspace(Stream& stream, int64_t bytes) { return workspace(workspaces_[&stream], stream, bytes); }
    void* workspace(Buffer& buffer, Stream& stream, int64_t bytes);
    // Enqueues c = op(a) op(b) + beta·base (+ bias).
    void product(Tensor c, Tensor a, Tensor b, Tensor bias, const cpu::GemmOptions& options,
                 const char* label, Stream& stream);
    // Enqueues the epilogue of a matmul on its result, in place. matmul.cpp.
    void apply(const op::Epilogue& epilogue, const Tensor& c, Stream& stream);

    CpuDevice& device_;
    const Isa isa_;
    std::map<Stream*, Buffer> workspaces_, between_;
    int64_t flops_ = 0;
};

namespace cpu {

void submit(Stream& stream, const char* label, std::function<void()> work);

// Calls body.template operator()<Real>() with the C++ type of a real dtype.
template <class Body>
void with_real(DType dtype, Body&& body) {
    if (dtype == DType::f32) return body.template operator()<float>();
    if (dtype == DType::bf16) return body.template operator()<Bf16>();
    throw_internal("a real (f32 or bf16) tensor is needed, not {}", name_of(dtype));
}

// Block size in elements of elementwise loops, for any number of threads.
constexpr int64_t kBlock = 8192;
// Number of chunks of a reduction over rows or elements; the chunks' results are added in order.
constexpr int64_t kReductionChunks = 32;

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
inline int64_t round_up(int64_t value, int64_t unit) {
    return ceil_div(value, unit) * unit;
}

struct Range {
    int64_t begin, end;
};
inline Range chunk_of(int64_t count, int64_t chunk, int64_t num_chunks) {
    return {count * chunk / num_chunks, count * (chunk + 1) / num_chunks};
}

}  // namespace cpu
}  // namespace speedrun
