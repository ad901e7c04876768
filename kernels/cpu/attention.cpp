// Flash attention on the CPU: causal, within documents and windows.
#include "kernels/cpu/attention_amx_backward.h"
#include "kernels/cpu/attention_amx_forward.h"
#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_f32.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/parallel.h"

namespace speedrun {

namespace {

// Queries of a forward work item: about 100 µs. Each item packs the keys and values that it sees.
constexpr int64_t kForwardQueries = 256;

// Calls body.template operator()<Kind>() with the matmul kind that serves the call.
template <class Arguments, class Body>
void with_kind(const Arguments& a, [[maybe_unused]] Isa isa, Body&& body) {
    const DType dtype = a.q.dtype;
    [[maybe_unused]] const AttentionShape shape = a.shape();
#ifdef SPEEDRUN_AMX_TILES
    if (dtype == DType::bf16 && isa == Isa::amx_bf16 && cpu::AmxAttention::serves(shape))
        return body.template operator()<cpu::AmxAttention>();
#endif
#ifdef SPEEDRUN_BF16_TILES
    if (dtype == DType::bf16 && shape.head_dim % cpu::kLanes == 0 && shape.value_dim % cpu::kLanes == 0)
        return body.template operator()<cpu::Bf16Attention>();
#endif
    cpu::with_real(dtype, [&]<class Real>() { body.template operator()<cpu::F32Attention<Real>>(); });
}

}  // namespace

void CpuOps::enqueue(const op::AttentionForward& a, Stream& stream) {
    const AttentionRows counts = attention_rows(a);
    flops_ += a.flops();
    with_kind(a, isa_, [&]<class Kind>() {
        const int64_t bytes = cpu::ForwardMemory<Kind>(a, nullptr).bytes;
        auto* scratch = static_cast<char*>(workspace(stream, device_.num_threads() * bytes));
        cpu::submit(stream, "attention_forward", [=] {
            const int64_t parts = cpu::ceil_div(counts.queries, kForwardQueries);
            cpu::parallel_for_dynamic(counts.sequences * a.options.num_heads * parts, [&](int64_t index) {
                const int64_t begin = index % parts * kForwardQueries;
                const cpu::Range queries{begin, std::min(begin + kForwardQueries, counts.queries)};
                const cpu::ForwardMemory<Kind> memory(a, scratch + cpu::member_index() * bytes);
                cpu::attention_forward<Kind>({a, index / parts}, queries, a, memory);
            });
        });
    });
}

void CpuOps::enqueue(const op::AttentionBackward& a, Stream& stream) {
    const int64_t heads = attention_rows(a).sequences * a.options.num_heads;
    flops_ += a.flops();
    with_kind(a, isa_, [&]<class Kind>() {
        const int64_t bytes = cpu::BackwardMemory<Kind>(a, nullptr).bytes;
        auto* scratch = static_cast<char*>(workspace(stream, device_.num_threads() * bytes));
        cpu::submit(stream, "attention_backward", [=] {
            cpu::parallel_for_dynamic(heads, [&](int64_t index) {
                const cpu::BackwardMemory<Kind> memory(a, scratch + cpu::member_index() * bytes);
                cpu::attention_backward<Kind>({a, index}, a, memory);
            });
        });
    });
}

}  // namespace speedrun
