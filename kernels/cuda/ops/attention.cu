// Flash attention (Dao et al. 2022; 2023 for the split into tiles). Two implementations:
//   mma: bf16, head sizes 64 and 128, operands aligned to 16 bytes: tensor cores, f32 sums and softmax;
//   portable: any type and head size up to 128, multiply-adds in f32: a warp owns a row.
// Both are deterministic: backward has one kernel that owns keys (dk, dv) and one that owns queries (dq).
// Each recomputes the probabilities, without atomic additions.
//
// Roofline bound, n = visible query-key pairs of all sequences and heads: forward 4·n·D FLOP, backward
// 10·n·D. This backward does 14·n·D: seven matmuls, as both kernels compute q·k and dout·v. Bytes: each of q,
// k, v, o (and dout, dq, dk, dv) once, 2·T·H·D each. A tile of the other side is read once per owner tile,
// from L2.
//
// mma blocks. A warp owns one strip of 16 rows; with 128 threads per block it owns two. Sizes:
// attention_mma.cuh.
//   kernel             D    rows owned  other rows  stages   threads  shared memory
//   forward           64           128          64       1  128, 256  33 KiB (queries, keys, values, visible keys)
//   forward          128           128          32       1  128, 256  49 KiB
//   backward keys     64           128          64       2       256  65.5 KiB (2 owned, 2·2 others, statistics)
//   backward keys    128           128          32       2       256  96.75 KiB
//   backward queries  64           128      32, 64       2  128, 256  50, 66 KiB (the same)
//   backward queries 128           128          32       2  128, 256  98 KiB
// With places (op::AttentionForward::place) an owner of keys uses 4 more bytes per row of the other side.
// Tiles that are fully masked are never visited. An owner of queries starts at the lowest first visible key
// of its rows and ends at the place of its last row. An owner of keys begins at the first query at or after
// its keys and ends at the last query that sees one.
#include "kernels/cuda/ops/attention_launch.cuh"
#include "kernels/cuda/ops/attention_mma.cuh"
#include "kernels/cuda/ops/attention_portable.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace attention_cu {
namespace {

using namespace attention;

// Calls body(problem) with the Problem type for these sizes.
template <class Body>
void with_problem(const Sizes& sizes, Body&& body) {
    if (sizes.places) return body(Problem<true>{sizes});
    body(Problem<false>{sizes});
}

// Strips per warp that owns queries: two if two blocks of `bytes` each fit the shared memory of a
// multiprocessor. Either number gives the same bits.
template <bool kPlaced, class Body>
void with_strips(int64_t bytes, Stream& stream, Body&& body) {
    if constexpr (!kPlaced) {
        if (2 * bytes <= max_shared_memory(stream)) return body.template operator()<2>();
    }
    body.template operator()<1>();
}

int64_t portable_bytes(const Sizes& p, int tiles, int vectors) {
    return 4 * (tiles * kPortableRows * (p.head_dim + 1) + vectors * 32 * kPortableWarps);
}

template <bool kPlaced>
void run_forward(const op::AttentionForward& a, const Problem<kPlaced>& p, Stream& stream) {
    const Grid grid{p.num_sequences, a.options.num_heads};
    if (uses_mma({a.o, a.q, a.k, a.v}, a.options)) {
        return with_head_dim(a.options.head_dim, [&]<int D>() {
            const int64_t bytes = (kOwned + 2 * forward_keys(D)) * D * 2 + 2 * kOwned * 4;
            with_strips<kPlaced>(bytes, stream, [&]<int kStrips>() {
                launch(attention_forward_mma_kernel<D, kPlaced, kStrips>, grid.of(p.num_queries, kOwned),
                       threads_of(kStrips), bytes, stream, view<Bf16>(a.o), a.lse.as<float>(),
                       view<const Bf16>(a.q), view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            });
        });
    }
    cuda::with_real(a.q.dtype, [&]<class Real>() {
        launch(attention_forward_kernel<Real, kPlaced>, grid.of(p.num_queries, kPortableRows),
               kPortableThreads, portable_bytes(p, 3, 1), stream, view<Real>(a.o), a.lse.as<float>(),
               view<const Real>(a.q), view<const Real>(a.k), view<const Real>(a.v), p);
    });
}

template <bool kPlaced>
void run_backward(const op::AttentionBackward& a, const Problem<kPlaced>& p, const BackwardScratch& scratch,
                  Stream& stream) {
    const Grid grid{p.num_sequences, a.options.num_heads};
    const float *lse = a.lse.as<float>(), *delta = scratch.delta;
    const int32_t* group_low = scratch.group_low;
    launch_backward_inputs(a, p, scratch, stream);
    if (uses_mma({a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v}, a.options)) {
        return with_head_dim(a.options.head_dim, [&]<int D>() {
            constexpr int64_t kQueries = backward_queries(D);
            const auto tiles = [](int64_t others) { return (2 * kOwned + 4 * others) * D * 2; };
            launch(attention_backward_keys_mma_kernel<D, kPlaced>, grid.of(p.length, kOwned), threads_of(1),
                   tiles(kQueries) + (kPlaced ? 8 : 6) * kQueries * 4, stream, view<Bf16>(a.dk),
                   view<Bf16>(a.dv), view<const Bf16>(a.dout), lse, delta, group_low, view<const Bf16>(a.q),
                   view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            const auto bytes = [&](int strips) { return tiles(backward_keys(D, strips)) + 4 * kOwned * 4; };
            with_strips<kPlaced>(bytes(2), stream, [&]<int kStrips>() {
                launch(attention_backward_queries_mma_kernel<D, kPlaced, kStrips>,
                       grid.of(p.num_queries, kOwned), threads_of(kStrips), bytes(kStrips), stream,
                       view<Bf16>(a.dq), view<const Bf16>(a.dout), lse, delta, view<const Bf16>(a.q),
                       view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            });
        });
    }
    cuda::with_real(a.q.dtype, [&]<class Real>() {
        launch(attention_backward_keys_kernel<Real, kPlaced>, grid.of(p.length, kPortableRows),
               kPortableThreads, portable_bytes(p, 4, 2), stream, view<Real>(a.dk), view<Real>(a.dv),
               view<const Real>(a.dout), lse, delta, group_low, view<const Real>(a.q), view<const Real>(a.k),
               view<const Real>(a.v), p);
        launch(attention_backward_queries_kernel<Real, kPlaced>, grid.of(p.num_queries, kPortableRows),
               kPortableThreads, portable_bytes(p, 4, 1), stream, view<Real>(a.dq), view<const Real>(a.dout),
               lse, delta, view<const Real>(a.q), view<const Real>(a.k), view<const Real>(a.v), p);
    });
}

}  // namespace
}  // namespace attention_cu

void CudaOps::enqueue(const op::AttentionForward& a, Stream& stream) {
    using namespace attention_cu;
    const Sizes sizes = sizes_of(a);
    flops_ += 4 * a.options.num_heads * a.options.head_dim * visible_pairs(a.options, a.q.rows());
    if (sizes.rows == 0) return;
    if (attention_ && attention_->forward(a, stream)) return;
    with_problem(sizes, [&](const auto& p) { run_forward(a, p, stream); });
}

void CudaOps::enqueue(const op::AttentionBackward& a, Stream& stream) {
    using namespace attention_cu;
    const Sizes sizes = sizes_of(a);
    const int64_t heads = a.options.num_heads;
    const bool whole = !a.rotary.present() || fuses_rotary(a.options, a.q.dtype);
    const bool by_library = sizes.rows > 0 && whole && attention_ && attention_->backward(a, stream);
    if (!by_library && a.rotary.present()) return enqueue_apart(a, stream);
    // Recomputed scores are not counted as work.
    flops_ += 8 * heads * a.options.head_dim * visible_pairs(a.options, a.q.rows());
    if (sizes.rows == 0 || by_library) return;
    const BackwardScratch scratch = scratch_at(workspace(stream, scratch_bytes(sizes, heads)), sizes, heads);
    with_problem(sizes, [&](const auto& p) { run_backward(a, p, scratch, stream); });
}

}  // namespace speedrun
