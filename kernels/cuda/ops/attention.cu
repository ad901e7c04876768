// Flash attention (Dao et al. 2022; 2023 for the split into tiles). Two implementations:
//   mma: bf16, heads of 64 or 128 columns, operands aligned to 16 bytes: tensor cores, f32 sums and softmax;
//   portable: any type and heads of up to 128 columns, multiply-adds in f32: a warp owns a row.
// Both are deterministic: backward has one kernel that owns keys (dk, dv) and one that owns queries (dq).
// Each recomputes the probabilities, without atomic additions.
//
// Roofline bound, n = visible query-key pairs of all sequences and heads: forward 2·n·(D + Dv) FLOP, backward
// 2·n·(3·D + 2·Dv). This backward does 2·n·(4·D + 3·Dv): seven matmuls, as both kernels compute q·k and dout·v.
// Bytes: q, k (and dq, dk) once, 2·T·H·D each; v, o (and dout, dv) once, 2·T·H·Dv each. A tile of the other side
// is read once per owner tile, from L2.
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
// If D is 64 and Dv is 128 or the reverse, Dv decides the other rows per tile in forward, the wider of both in
// backward keys, and D in backward queries:
//   D/Dv             forward  backward keys  backward queries
//   64/128            45 KiB      72.75 KiB       74, 98 KiB
//   128/64            57 KiB      72.75 KiB           74 KiB
// With places (op::AttentionForward::place) an owner of keys uses 4 more bytes per row of the other side.
// Tiles that are fully masked are never visited. An owner of queries starts at the lowest first visible key
// of its rows and ends at the place of its last row. An owner of keys begins at the first query at or after
// its keys and ends at the last query that sees one.
#include <fmt/format.h>

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

// Tiles with the width of q and k, and of v and o.
struct PortableTiles {
    int keys, values;
};
int64_t portable_bytes(const Sizes& p, PortableTiles tiles, int vectors) {
    return 4 * (kPortableRows * (tiles.keys * (p.head_dim + 1) + tiles.values * (p.value_dim + 1)) +
                vectors * 32 * kPortableWarps);
}

// Calls body.template operator()<D, Dv>().
template <class Body>
void with_widths(const Sizes& p, Body&& body) {
    with_head_dim(p.head_dim, [&]<int D>() {
        with_head_dim(p.value_dim, [&]<int Dv>() { body.template operator()<D, Dv>(); });
    });
}

template <bool kPlaced>
void run_forward(const op::AttentionForward& a, const Problem<kPlaced>& p, Stream& stream) {
    const Grid grid{p.num_sequences, a.options.num_heads};
    if (uses_mma({a.o, a.q, a.k, a.v}, p)) {
        return with_widths(p, [&]<int D, int Dv>() {
            constexpr int64_t kKeys = forward_keys(Dv);
            const int64_t bytes = (kOwned * widest(D, Dv) + kKeys * (D + Dv)) * 2 + 2 * kOwned * 4;
            with_strips<kPlaced>(bytes, stream, [&]<int kStrips>() {
                launch(attention_forward_mma_kernel<D, Dv, kPlaced, kStrips>, grid.of(p.num_queries, kOwned),
                       threads_of(kStrips), bytes, stream, view<Bf16>(a.o), a.lse.as<float>(),
                       view<const Bf16>(a.q), view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            });
        });
    }
    cuda::with_real(a.q.dtype, [&]<class Real>() {
        launch(attention_forward_kernel<Real, kPlaced>, grid.of(p.num_queries, kPortableRows),
               kPortableThreads, portable_bytes(p, {2, 1}, 1), stream, view<Real>(a.o), a.lse.as<float>(),
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
    if (uses_mma({a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v}, p)) {
        return with_widths(p, [&]<int D, int Dv>() {
            constexpr int64_t kQueries = backward_queries(widest(D, Dv));
            const auto tiles = [](int64_t others) { return (kOwned + 2 * others) * (D + Dv) * 2; };
            launch(attention_backward_keys_mma_kernel<D, Dv, kPlaced>, grid.of(p.length, kOwned),
                   threads_of(1), tiles(kQueries) + (kPlaced ? 8 : 6) * kQueries * 4, stream,
                   view<Bf16>(a.dk), view<Bf16>(a.dv), view<const Bf16>(a.dout), lse, delta, group_low,
                   view<const Bf16>(a.q), view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            const auto bytes = [&](int strips) { return tiles(backward_keys(D, strips)) + 4 * kOwned * 4; };
            with_strips<kPlaced>(bytes(2), stream, [&]<int kStrips>() {
                launch(attention_backward_queries_mma_kernel<D, Dv, kPlaced, kStrips>,
                       grid.of(p.num_queries, kOwned), threads_of(kStrips), bytes(kStrips), stream,
                       view<Bf16>(a.dq), view<const Bf16>(a.dout), lse, delta, view<const Bf16>(a.q),
                       view<const Bf16>(a.k), view<const Bf16>(a.v), p);
            });
        });
    }
    cuda::with_real(a.q.dtype, [&]<class Real>() {
        launch(attention_backward_keys_kernel<Real, kPlaced>, grid.of(p.length, kPortableRows),
               kPortableThreads, portable_bytes(p, {2, 2}, 2), stream, view<Real>(a.dk), view<Real>(a.dv),
               view<const Real>(a.dout), lse, delta, group_low, view<const Real>(a.q), view<const Real>(a.k),
               view<const Real>(a.v), p);
        launch(attention_backward_queries_kernel<Real, kPlaced>, grid.of(p.num_queries, kPortableRows),
               kPortableThreads, portable_bytes(p, {2, 2}, 1), stream, view<Real>(a.dq),
               view<const Real>(a.dout), lse, delta, view<const Real>(a.q), view<const Real>(a.k),
               view<const Real>(a.v), p);
    });
}

// Adds a note on bf16 with two widths that only the portable kernels support.
void note_widths(std::set<std::string>& notes, DType dtype, const Sizes& p) {
    if (dtype != DType::bf16 || p.head_dim == p.value_dim || has_mma_kernels(widths_of(p))) return;
    notes.insert(fmt::format("attention with heads of {} columns in q and {} in v runs without tensor cores",
                             p.head_dim, p.value_dim));
}

}  // namespace
}  // namespace attention_cu

void CudaOps::enqueue(const op::AttentionForward& a, Stream& stream) {
    using namespace attention_cu;
    const Sizes sizes = sizes_of(a);
    flops_ += a.flops();
    if (sizes.rows == 0) return;
    if (attention_ && attention_->forward(a, stream)) return;
    note_widths(notes_, a.q.dtype, sizes);
    with_problem(sizes, [&](const auto& p) { run_forward(a, p, stream); });
}

void CudaOps::enqueue(const op::AttentionBackward& a, Stream& stream) {
    using namespace attention_cu;
    const Sizes sizes = sizes_of(a);
    const int64_t heads = a.options.num_heads;
    const bool whole = !a.rotary.present() || fuses_rotary(widths_of(a.shape()), a.q.dtype);
    const bool by_library = sizes.rows > 0 && whole && attention_ && attention_->backward(a, stream);
    if (!by_library && a.rotary.present()) return enqueue_apart(a, stream);
    flops_ += a.flops();
    if (sizes.rows == 0 || by_library) return;
    note_widths(notes_, a.q.dtype, sizes);
    const BackwardScratch scratch = scratch_at(workspace(stream, scratch_bytes(sizes, heads)), sizes, heads);
    with_problem(sizes, [&](const auto& p) { run_backward(a, p, scratch, stream); });
}

}  // namespace speedrun
