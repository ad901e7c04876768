// A mix of the heads' attention maps, applied to the values of each head. A block has the 32 queries of a
// tile and keeps the mixed map over all their keys in shared memory. Backward has a kernel over tiles of
// queries, which stores the mixed map and its gradient as bands of `keys` values per query. A second kernel
// over tiles of keys, head by head, reads them. So every sum has one owner and a fixed order. Work: forward 2
// matmuls of a head's queries with its keys, backward 7 for the 4 that are counted. Legend: T tokens, H
// heads, D head size, S sequence length · columns of a map are the keys from the first key of the tile on.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/compose_heads.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace compose_heads_cu {
namespace {

using namespace composed;

template <class Real>
struct ForwardArguments {
    Rows<Real> c, q, k, v;
    Sizes sizes;
};

template <class Real, int W>
__global__ void __launch_bounds__(kThreads, 2) compose_heads_forward_kernel(ForwardArguments<Real> a) {
    wait_for_prior_kernels();
    const Sizes& s = a.sizes;
    const Tile tile(s, true);
    const QueryMemory m(s, false);
    const int cols = padded(tile.others), tx = static_cast<int>(threadIdx.x) % kSide,
              ty = static_cast<int>(threadIdx.x) / kSide;
    mix_maps<W>(s, tile, m, a.q, a.k, cols, false);
    for (int h = 0; h < s.heads; ++h) {
        const HeadOutput<Real> out{a.c, tile.begin, tile.count, h, s.head_dim, false};
        const HeadRows<Real> values(a.v, tile.other, tile.others, h, s.head_dim);
        for (int d0 = 0; d0 < s.head_dim; d0 += kColumns) {
            Vector<4> sums[2];
            combine<W, false>(sums, m.mixed, m.pitch, values, cols, d0);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = 2 * ty + r;
                if (row < tile.count)
                    out.template put<W>(row, d0 + 4 * tx, sums[r], s.w2.at(tile.begin + row, h));
            }
        }
    }
}

// Output of the kernel over queries, for the kernel over keys.
struct Kept {
    float *mixed, *dmixed;  // [T][keys]: query i and key j are at i·keys + j − i + keys − 1
    float *lse, *u, *e;     // [T][H]
    float* partial;         // [blocks][2][H], for weights that all tokens share

    Kept(float* memory, int64_t rows, const ComposeHeadsOptions& o)
        : mixed(memory),
          dmixed(mixed + rows * o.keys),
          lse(dmixed + rows * o.keys),
          u(lse + rows * o.num_heads),
          e(u + rows * o.num_heads),
          partial(e + rows * o.num_heads) {}
    static int64_t bytes(int64_t rows, int64_t blocks, const ComposeHeadsOptions& o) {
        return int64_t{sizeof(float)} *
               (2 * rows * o.keys + 3 * rows * o.num_heads + 2 * blocks * o.num_heads);
    }
};

template <class Real>
struct BackwardArguments {
    Rows<Real> dq, dk, dv, dc, q, k, v;
    Rows<float> dw1, dw2;  // per token; null: partial
    Kept kept;
    Sizes sizes;
    bool accumulate_q, accumulate_k, accumulate_v, accumulate_w1, accumulate_w2;
};

__device__ __forceinline__ void store_gradient(const Rows<float>& to, int64_t token, int head, float value,
                                               bool accumulate) {
    float* const p = to.at(token, head);
    *p = accumulate ? *p + value : value;
}

// Gradients of the mix and of w2. One warp per row.
template <int W, class Real>
__device__ inline void mix_gradients(const BackwardArguments<Real>& a, const Tile& tile, const QueryMemory& m,
                                     int cols) {
    const Sizes& s = a.sizes;
    for_rows_of_warp(tile, [&](int row) {
        const auto dmixed = m.row(m.dmixed, row);
        for (int c = lane_index(); c < cols; c += sizes::kWarp) dmixed[c] = 0.0f;
    });
    for (int h = 0; h < s.heads; ++h) {
        dots<W, false>(m.map, m.pitch, HeadRows<Real>(a.dc, tile.begin, tile.count, h, s.head_dim),
                       HeadRows<Real>(a.v, tile.other, tile.others, h, s.head_dim), cols, 1.0f);
        __syncthreads();
        for_rows_of_warp(tile, [&](int row) {
            const auto products = m.row(m.map, row), mixed = m.row(m.mixed, row),
                       dmixed = m.row(m.dmixed, row);
            const float w2 = s.w2.at(tile.begin + row, h);
            float sum = 0.0f;
            for (int c = lane_index(); c < cols; c += sizes::kWarp) {
                sum = fmaf(mixed[c], products[c], sum);
                dmixed[c] = fmaf(w2, products[c], dmixed[c]);
            }
            sum = warp_sum(sum);
            if (lane_index() == 0) shared_memory<float>(int64_t{m.dw2} * 4)[row * s.heads + h] = sum;
        });
    }
}

template <class Real, int W>
__global__ void __launch_bounds__(kThreads, 2)
    compose_heads_backward_queries_kernel(BackwardArguments<Real> a) {
    wait_for_prior_kernels();
    const Sizes& s = a.sizes;
    const Tile tile(s, true);
    const QueryMemory m(s, true);
    const int cols = padded(tile.others), tx = static_cast<int>(threadIdx.x) % kSide,
              ty = static_cast<int>(threadIdx.x) / kSide;
    const auto all_lse = shared_memory<float>(int64_t{m.lse} * 4, kTile * s.heads),
               all_e = shared_memory<float>(int64_t{m.e} * 4, kTile * s.heads),
               all_dw2 = shared_memory<float>(int64_t{m.dw2} * 4, kTile * s.heads);
    mix_maps<W>(s, tile, m, a.q, a.k, cols, true);
    mix_gradients<W>(a, tile, m, cols);
    for (int h = 0; h < s.heads; ++h) {
        const HeadRows<Real> keys(a.k, tile.other, tile.others, h, s.head_dim);
        dots<W, false>(m.map, m.pitch, HeadRows<Real>(a.q, tile.begin, tile.count, h, s.head_dim), keys, cols,
                       s.scale);
        __syncthreads();
        for (int r = 0; r < kRowsOfWarp; ++r) {
            const int row = warp_index() * kRowsOfWarp + r;
            const auto map = m.row(m.map, row), dmixed = m.row(m.dmixed, row);
            if (row >= tile.count) {  // combine() multiplies by all rows
                for (int c = lane_index(); c < cols; c += sizes::kWarp) map[c] = 0.0f;
                continue;
            }
            const int64_t token = tile.begin + row;
            const int first = static_cast<int>(low_of(s, token) - tile.other),
                      end = static_cast<int>(token + 1 - tile.other);
            const float lse = all_lse[row * s.heads + h], u = s.w1.at(token, h) * rstd_of(s, token);
            float e = 0.0f;
            for (int c = lane_index(); c < cols; c += sizes::kWarp) {
                const float p = c >= first && c < end ? expf(map[c] - lse) : 0.0f;
                map[c] = p;
                e = fmaf(p, dmixed[c], e);
            }
            e = warp_sum(e);
            for (int c = lane_index(); c < cols; c += sizes::kWarp) map[c] = u * map[c] * (dmixed[c] - e);
            if (lane_index() > 0) continue;
            all_e[row * s.heads + h] = e;
            const int64_t at = token * s.heads + h;
            a.kept.lse[at] = lse;
            a.kept.u[at] = u;
            a.kept.e[at] = e;
        }
        const HeadOutput<Real> out{a.dq, tile.begin, tile.count, h, s.head_dim, a.accumulate_q};
        for (int d0 = 0; d0 < s.head_dim; d0 += kColumns) {
            Vector<4> sums[2];
            combine<W, false>(sums, m.map, m.pitch, keys, cols, d0);
#pragma unroll
            for (int r = 0; r < 2; ++r) out.template put<W>(2 * ty + r, d0 + 4 * tx, sums[r], s.scale);
        }
    }
    for_rows_of_warp(tile, [&](int row) {
        const int64_t token = tile.begin + row;
        const int first = static_cast<int>(low_of(s, token) - tile.other),
                  end = static_cast<int>(token + 1 - tile.other);
        const auto mixed = m.row(m.mixed, row), dmixed = m.row(m.dmixed, row);
        const int64_t band = token * s.keys + (tile.other - token + s.keys - 1);
        for (int c = lane_index(); c < cols; c += sizes::kWarp) {
            if (c < first || c >= end) continue;
            a.kept.mixed[band + c] = mixed[c];
            a.kept.dmixed[band + c] = dmixed[c];
        }
        // Gradient of the norm over heads; e is replaced by the gradient of w1.
        const float rstd = rstd_of(s, token);
        float along = 0.0f;
        for (int h = lane_index(); h < s.heads; h += sizes::kWarp)
            along = fmaf(all_e[row * s.heads + h], s.w1.at(token, h) * rstd, along);
        along = warp_sum(along) / static_cast<float>(s.heads);
        for (int h = lane_index(); h < s.heads; h += sizes::kWarp) {
            const int at = row * s.heads + h;
            const float dw1 = rstd * (all_e[at] - s.w1.at(token, h) * rstd * along);
            all_e[at] = dw1;
            if (a.dw1.data) store_gradient(a.dw1, token, h, dw1, a.accumulate_w1);
            if (a.dw2.data) store_gradient(a.dw2, token, h, all_dw2[at], a.accumulate_w2);
        }
    });
    __syncthreads();
    for (int h = static_cast<int>(threadIdx.x); h < s.heads; h += kThreads) {
        float dw1 = 0.0f, dw2 = 0.0f;
        for (int row = 0; row < tile.count; ++row) {
            dw1 += all_e[row * s.heads + h];
            dw2 += all_dw2[row * s.heads + h];
        }
        float* const partial = a.kept.partial + int64_t{blockIdx.x} * 2 * s.heads + h;
        partial[0] = dw1;
        partial[s.heads] = dw2;
    }
}

// Maps of this kernel are transposed, one row per query: a warp then reads adjacent keys from the bands.
constexpr int kTransposedPitch = kTile + 4;

template <class Real, int W>
__global__ void __launch_bounds__(kThreads, 2) compose_heads_backward_keys_kernel(BackwardArguments<Real> a) {
    wait_for_prior_kernels();
    const Sizes& s = a.sizes;
    const Tile tile(s, false);
    const int cols = padded(tile.others), head = static_cast<int>(blockIdx.y),
              tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
    const int scores_at = kStaged, weights_at = kStaged + s.max_columns() * kTransposedPitch;
    const auto scores = shared_memory<float>(int64_t{scores_at} * 4, int64_t{cols} * kTransposedPitch),
               weights = shared_memory<float>(int64_t{weights_at} * 4, int64_t{cols} * kTransposedPitch);
    const HeadRows<Real> queries(a.q, tile.other, tile.others, head, s.head_dim);
    dots<W, true>(scores_at, kTransposedPitch, HeadRows<Real>(a.k, tile.begin, tile.count, head, s.head_dim),
                  queries, cols, s.scale);
    __syncthreads();
    constexpr int kWarps = kThreads / sizes::kWarp;
    for (int c = warp_index(); c < cols; c += kWarps) {
        const int at = c * kTransposedPitch + lane_index();
        const int64_t query = tile.other + c, key = tile.begin + lane_index();
        const bool seen =
            c < tile.others && lane_index() < tile.count && key <= query && key >= low_of(s, query);
        float weight = 0.0f, gradient = 0.0f;
        if (seen) {
            const int64_t band = query * s.keys + (key - query + s.keys - 1),
                          of_head = query * s.heads + head;
            weight = a.kept.mixed[band] * s.w2.at(query, head);
            gradient = a.kept.u[of_head] * expf(scores[at] - a.kept.lse[of_head]) *
                       (a.kept.dmixed[band] - a.kept.e[of_head]);
        }
        scores[at] = gradient;
        weights[at] = weight;
    }
    const HeadRows<Real> upstream(a.dc, tile.other, tile.others, head, s.head_dim);
    const HeadOutput<Real> of_key{a.dk, tile.begin, tile.count, head, s.head_dim, a.accumulate_k},
        of_value{a.dv, tile.begin, tile.count, head, s.head_dim, a.accumulate_v};
    for (int d0 = 0; d0 < s.head_dim; d0 += kColumns) {
        Vector<4> sums[2];
        combine<W, true>(sums, scores_at, kTransposedPitch, queries, cols, d0);
#pragma unroll
        for (int r = 0; r < 2; ++r) of_key.template put<W>(2 * ty + r, d0 + 4 * tx, sums[r], s.scale);
        combine<W, true>(sums, weights_at, kTransposedPitch, upstream, cols, d0);
#pragma unroll
        for (int r = 0; r < 2; ++r) of_value.template put<W>(2 * ty + r, d0 + 4 * tx, sums[r], 1.0f);
    }
}

// Calls body.template operator()<W>(): 4 if no four columns span two heads and all tensors are aligned.
template <class Body>
void with_fours(const ComposeHeadsOptions& o, std::initializer_list<Tensor> tensors, Body&& body) {
    if (o.head_dim % 4 == 0 && aligned_rows(4, tensors)) return body.template operator()<4>();
    return body.template operator()<1>();
}

unsigned blocks_of(const Sizes& s, int64_t rows) {
    return grid_of(rows / s.length * s.tiles(), 1);
}

}  // namespace
}  // namespace compose_heads_cu

void CudaOps::enqueue(const op::ComposeHeadsForward& a, Stream& stream) {
    using namespace compose_heads_cu;
    flops_ += 4 * a.options.num_heads * a.options.head_dim * visible_pairs(a.options, a.c.rows());
    if (a.c.rows() == 0) return;
    const Sizes s(a);
    cuda::with_real(a.c.dtype, [&]<class Real>() {
        with_fours(a.options, {a.c, a.q, a.k, a.v}, [&]<int W>() {
            const ForwardArguments<Real> arguments{Rows<Real>(a.c), Rows<Real>(a.q), Rows<Real>(a.k),
                                                   Rows<Real>(a.v), s};
            launch(compose_heads_forward_kernel<Real, W>, blocks_of(s, a.c.rows()), kThreads,
                   QueryMemory(s, false).floats * int64_t{4}, stream, arguments);
        });
    });
}

void CudaOps::enqueue(const op::ComposeHeadsBackward& a, Stream& stream) {
    using namespace compose_heads_cu;
    const int64_t rows = a.dc.rows(), heads = a.options.num_heads;
    flops_ += 8 * heads * a.options.head_dim * visible_pairs(a.options, rows);
    const Sizes s(a);
    const unsigned blocks = blocks_of(s, rows);
    const Kept kept(static_cast<float*>(workspace(stream, Kept::bytes(rows, blocks, a.options))), rows,
                    a.options);
    const bool shared_w1 = a.w1.rank != 2, shared_w2 = a.w2.rank != 2;
    if (rows > 0) {
        cuda::with_real(a.dc.dtype, [&]<class Real>() {
            with_fours(a.options, {a.dq, a.dk, a.dv, a.dc, a.q, a.k, a.v}, [&]<int W>() {
                const BackwardArguments<Real> arguments{Rows<Real>(a.dq),
                                                        Rows<Real>(a.dk),
                                                        Rows<Real>(a.dv),
                                                        Rows<Real>(a.dc),
                                                        Rows<Real>(a.q),
                                                        Rows<Real>(a.k),
                                                        Rows<Real>(a.v),
                                                        Rows<float>(shared_w1 ? Tensor() : a.dw1),
                                                        Rows<float>(shared_w2 ? Tensor() : a.dw2),
                                                        kept,
                                                        s,
                                                        a.accumulate_q,
                                                        a.accumulate_k,
                                                        a.accumulate_v,
                                                        a.accumulate_w1,
                                                        a.accumulate_w2};
                launch(compose_heads_backward_queries_kernel<Real, W>, blocks, kThreads,
                       QueryMemory(s, true).floats * int64_t{4}, stream, arguments);
                launch(compose_heads_backward_keys_kernel<Real, W>,
                       dim3(blocks, static_cast<unsigned>(heads)), kThreads,
                       (kStaged + 2 * s.max_columns() * kTransposedPitch) * int64_t{4}, stream, arguments);
            });
        });
    }
    if (shared_w1)
        add_chunks(a.dw1.as<float>(), nullptr, kept.partial, blocks, 2, heads, a.accumulate_w1, stream);
    if (shared_w2)
        add_chunks(nullptr, a.dw2.as<float>(), kept.partial, blocks, 2, heads, a.accumulate_w2, stream);
}

}  // namespace speedrun
