// CpuOps: the operations of kernels/ops/ops.h on a CpuDevice. One .cpp per operation family, same stem as
// elsewhere.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/ops.h"

namespace speedrun {

class CpuOps final : public Ops {
  public:
    CpuOps(CpuDevice& device, Isa isa);
    ~CpuOps() override;

    void embedding_forward(Tensor, Tensor, Tensor, Tensor, Tensor, Stream&) override;
    void sort_ids(Tensor, Tensor, int64_t, Stream&) override;
    void embedding_backward(Tensor, Tensor, Tensor, bool, Stream&) override;
    void matmul(Tensor, Tensor, Tensor, Tensor, const MatmulOptions&, Stream&) override;
    void column_sum(Tensor, Tensor, bool, Stream&) override;
    void norm_forward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, NormKind,
                      Stream&) override;
    void norm_backward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, NormKind,
                       Stream&) override;
    void mix_norm_forward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const MixWith&, Tensor,
                          Tensor, NormKind, Stream&) override;
    void mix_norm_backward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const MixWith&,
                           Tensor, Tensor, Tensor, Tensor, bool, bool, NormKind, Stream&) override;
    void activation_forward(Tensor, Tensor, Activation, Stream&) override;
    void activation_backward(Tensor, Tensor, Tensor, Activation, Stream&) override;
    void mix_backward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, bool, Stream&) override;
    void add(Tensor, Tensor, Tensor, Stream&) override;
    void qk_norm_rotary_forward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const ValueMix&,
                                const RotaryOptions&, Stream&) override;
    void qk_norm_rotary_backward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                 const RotaryOptions&, Stream&) override;
    void attention_forward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const AttentionOptions&,
                           Stream&) override;
    void attention_backward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                            const AttentionOptions&, Stream&) override;
    void cross_entropy(Tensor, Tensor, Tensor, Tensor, const CrossEntropyOptions&, Stream&) override;
    void adamw_step(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const AdamwOptions&, Stream&) override;
    void muon_momentum(Tensor, Tensor, Tensor, Tensor, const MuonMomentumOptions&, Stream&) override;
    void gram(Tensor, Tensor, Stream&) override;
    void polar_express(Tensor, Tensor, Stream&) override;
    void normuon_scale(Tensor, Tensor, Tensor, const NormuonOptions&, Stream&) override;
    void muon_apply(Tensor, Tensor, Tensor, Tensor, const MuonApplyOptions&, Stream&) override;
    void fill(Tensor, float, Stream&) override;
    void scale(Tensor, float, Stream&) override;
    void cast(Tensor, Tensor, Stream&) override;
    void norm_term(Tensor, Tensor, VectorNorm, Stream&) override;
    void sum(Tensor, Tensor, bool, Stream&) override;
    void count_nonfinite(Tensor, Tensor, Stream&) override;
    void clip_coefficient(Tensor, Tensor, Tensor, float, VectorNorm, Stream&) override;
    void random_normal(Tensor, uint64_t, uint64_t, int64_t, float, Stream&) override;
    void random_uniform(Tensor, uint64_t, uint64_t, int64_t, float, Stream&) override;
    int64_t flops() const override { return flops_; }

  private:
    // Scratch memory of at least this many bytes for work on this stream; one piece per stream, used by one
    // operation at a time. Grows (and then waits for the stream) only while shapes are new.
    void* workspace(Stream& stream, int64_t bytes);
    struct ProductOptions {
        bool transpose_a = false, transpose_b = false;
        float beta = 0.0f;
        Tensor base = {};        // beta·base is added; absent: beta·c
        bool symmetric = false;  // the result is: half of the work will do
    };
    // c = op(a) op(b) + beta·base (+ bias), checked.
    void product(Tensor c, Tensor a, Tensor b, Tensor bias, const ProductOptions& options, const char* label,
                 Stream& stream);

    CpuDevice& device_;
    const Isa isa_;
    std::map<Stream*, Buffer> workspaces_;
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

// Elementwise loops run over blocks of this many elements, whatever the number of threads.
constexpr int64_t kBlock = 8192;
// Reductions over rows or elements run over this many chunks and add the chunks' results in order.
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
