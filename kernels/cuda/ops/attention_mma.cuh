// Attention on tensor cores: bf16 operands, f32 sums and softmax. A warp has 16 rows of the tile that its
// block owns, the block walks over tiles of the other side. Sizes and shared memory: attention.cu.
#pragma once

#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/ops/attention.cuh"

namespace speedrun::attention {

using tile::copy_rows_async;

template <int D>
struct Tiles;  // the constexpr table of the mma path
template <>
struct Tiles<64> {
    static constexpr int kOwned = 128, kForwardKeys = 64, kBackwardOthers = 64;
};
template <>
struct Tiles<128> {
    static constexpr int kOwned = 128, kForwardKeys = 64, kBackwardOthers = 32;
};
constexpr int kThreads = 256;  // 8 warps of 16 rows
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int D, bool kPlaced>
__global__ void __launch_bounds__(kThreads)
    attention_forward_mma_kernel(View<Bf16> o, float* lse, View<const Bf16> q, View<const Bf16> k,
                                 View<const Bf16> v, Problem<kPlaced> p) {
    constexpr int kQueries = Tiles<D>::kOwned, kKeys = Tiles<D>::kForwardKeys, kTiles = kKeys / 8;
    Bf16* queries = shared_memory<Bf16>(0);
    Bf16* keys = shared_memory<Bf16>(kQueries * D * 2);
    Bf16* values = shared_memory<Bf16>((kQueries + kKeys) * D * 2);
    const Where w = where_of_queries(p, kQueries);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kQueries;
    const int end =
        kPlaced ? p.key_end(w.first, min(begin + kQueries, p.queries())) : min(begin + kQueries, p.length);
    const int clear_end = kPlaced ? p.key_end(w.first, begin + 1) : begin + 1;
    const int own = begin + warp * 16 + g;  // this lane's queries: own and own + 8
    const Bf16* k_head = k.head(w.first.key, w.column);
    const Bf16* v_head = v.head(w.first.key, w.column);

    const LowRange low = low_range<kQueries>(p, w.first, begin);
    const int first = low.lowest / kKeys * kKeys;
    // Queries that see no key get zeros from every warp by itself: no copy may then be on its way into a tile.
    if (!kPlaced || first < end) {
        copy_rows_async<kQueries, D, kThreads>(queries, q.head(w.first.query, w.column), q.stride, begin,
                                               p.queries());
        copy_rows_async<kKeys, D, kThreads>(keys, k_head, k.stride, first, p.length);
        ptx::copy_async_commit();
    }

    int own_low[2], own_place[2];
    float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const bool valid = own + 8 * h < p.queries();
        own_low[h] = valid ? p.low(w.first, own + 8 * h) : 0;
        if constexpr (kPlaced) own_place[h] = valid ? p.place(w.first, own + 8 * h) : p.length;
    }
    float sums[D / 8][4] = {};
    const float scale = p.scale * kLog2E;

    for (int j0 = first; j0 < end; j0 += kKeys) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // the keys are here, and nobody reads the last values any more
        copy_rows_async<kKeys, D, kThreads>(values, v_head, v.stride, j0, p.length);
        ptx::copy_async_commit();
        float s[kTiles][4] = {};
        tile::multiply_rows<D>(s, queries, warp * 16, keys);
        ptx::copy_async_wait<0>();
        __syncthreads();  // the values are here, and nobody reads these keys any more
        if (j0 + kKeys < end) {
            copy_rows_async<kKeys, D, kThreads>(keys, k_head, k.stride, j0 + kKeys, p.length);
            ptx::copy_async_commit();
        }

        const bool masked = j0 + kKeys > clear_end || j0 < low.highest;
        float raised[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = i / 2, key = j0 + 8 * n + 2 * t + i % 2;
                s[n][i] *= scale;
                if (masked && (key > (kPlaced ? own_place[h] : own + 8 * h) || key < own_low[h]))
                    s[n][i] = -INFINITY;
                raised[h] = fmaxf(raised[h], s[n][i]);
            }
        }
        float base[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            raised[h] = fmaxf(raised[h], __shfl_xor_sync(~0u, raised[h], 1));
            raised[h] = fmaxf(raised[h], __shfl_xor_sync(~0u, raised[h], 2));
            base[h] = raised[h] == -INFINITY ? 0.0f : raised[h];  // nothing visible yet
            const float factor = ptx::exp2_approx(maximum[h] - base[h]);
            maximum[h] = raised[h];
            total[h] *= factor;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                sums[n][2 * h] *= factor;
                sums[n][2 * h + 1] *= factor;
            }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[n][i] = ptx::exp2_approx(s[n][i] - base[i / 2]);
                total[i / 2] += s[n][i];
            }
        }
        tile::multiply_accumulator<D>(sums, s, values);
    }

    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        total[h] += __shfl_xor_sync(~0u, total[h], 1);
        total[h] += __shfl_xor_sync(~0u, total[h], 2);
        inverse[h] = kPlaced && total[h] == 0.0f ? 0.0f : 1.0f / total[h];  // 0: it sees no key
        if (t == 0 && own + 8 * h < p.queries()) {
            lse[w.head * p.rows + w.first.query + own + 8 * h] = (maximum[h] + log2f(total[h])) * kLn2;
        }
    }
    tile::store_rows<D>(o.head(w.first.query, w.column), o.stride, begin, p.queries(), queries, warp * 16,
                        sums, inverse[0], inverse[1]);
}

// dv_j = Σ_i P_ij dout_i, dk_j = scale · Σ_i dS_ij q_i with dS = P ∘ (dout vᵀ − delta): all transposed, a
// warp has 16 keys as rows, so that P and dS go from accumulators into the second products.
template <int D, bool kPlaced>
__global__ void __launch_bounds__(kThreads)
    attention_backward_keys_mma_kernel(View<Bf16> dk, View<Bf16> dv, View<const Bf16> dout, const float* lse,
                                       const float* delta, const int32_t* group_low, View<const Bf16> q,
                                       View<const Bf16> k, View<const Bf16> v, Problem<kPlaced> p) {
    constexpr int kKeys = Tiles<D>::kOwned, kQueries = Tiles<D>::kBackwardOthers, kTiles = kQueries / 8;
    constexpr int kStage = 2 * kQueries * D;  // elements: queries, then their dout
    Bf16* keys = shared_memory<Bf16>(0);
    Bf16* values = shared_memory<Bf16>(kKeys * D * 2);
    Bf16* stages = shared_memory<Bf16>(2 * kKeys * D * 2);
    float* row_lse = shared_memory<float>((2 * kKeys * D + 2 * kStage) * 2);  // [2][kQueries], as those below
    float* row_delta = row_lse + 2 * kQueries;
    int* row_low = shared_memory<int>((2 * kKeys * D + 2 * kStage) * 2 + 4 * kQueries * 4);
    int* row_place = row_low + 2 * kQueries;  // with places
    const Where w = where_of_keys(p);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kKeys, own = begin + warp * 16 + g;
    const Bf16* q_head = q.head(w.first.query, w.column);
    const Bf16* dout_head = dout.head(w.first.query, w.column);
    const int64_t statistics = w.head * p.rows + w.first.query;

    const auto fetch = [&](int stage, int i0) {
        copy_rows_async<kQueries, D, kThreads>(stages + stage * kStage, q_head, q.stride, i0, p.queries());
        copy_rows_async<kQueries, D, kThreads>(stages + stage * kStage + kQueries * D, dout_head, dout.stride,
                                               i0, p.queries());
        ptx::copy_async_commit();
        const int row = static_cast<int>(threadIdx.x);
        if (row < kQueries && kPlaced) {
            // Beyond the last query is that one again, at no place: what loads only some rows is a branch.
            const int query = min(i0 + row, p.queries() - 1), at = stage * kQueries + row;
            row_lse[at] = lse[statistics + query] * kLog2E;
            row_delta[at] = delta[statistics + query];
            row_low[at] = p.low(w.first, query);
            row_place[at] = i0 + row == query ? p.place(w.first, query) : -1;
        } else if (row < kQueries) {
            const bool valid = i0 + row < p.length;  // beyond it P is exp2(−∞)
            row_lse[stage * kQueries + row] = valid ? lse[statistics + i0 + row] * kLog2E : INFINITY;
            row_delta[stage * kQueries + row] = valid ? delta[statistics + i0 + row] : 0.0f;
            row_low[stage * kQueries + row] = valid ? p.low(w.first, i0 + row) : 0;
        }
    };

    const int first = kPlaced ? p.first_query(w.first, begin) : begin;
    const int end = query_end(p, group_low, w, first, min(begin + kKeys, p.length));
    // Keys that no query sees get zeros from every warp by itself: no copy may then be on its way into a tile.
    if (!kPlaced || first < end) {
        copy_rows_async<kKeys, D, kThreads>(keys, k.head(w.first.key, w.column), k.stride, begin, p.length);
        copy_rows_async<kKeys, D, kThreads>(values, v.head(w.first.key, w.column), v.stride, begin, p.length);
        fetch(0, first);
    }

    float key_sums[D / 8][4] = {}, value_sums[D / 8][4] = {};
    const float scale = p.scale * kLog2E;
    int stage = 0;
    for (int i0 = first; i0 < end; i0 += kQueries, stage ^= 1) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // this stage is here, and nobody reads the other one any more
        if (i0 + kQueries < end) fetch(stage ^ 1, i0 + kQueries);
        const Bf16* queries = stages + stage * kStage;
        const Bf16* upstream = queries + kQueries * D;

        float s[kTiles][4] = {}, ds[kTiles][4] = {};
        tile::multiply_rows<D>(s, keys, warp * 16, queries);
        tile::multiply_rows<D>(ds, values, warp * 16, upstream);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 8 * n + 2 * t + i % 2, at = stage * kQueries + column,
                          key = own + 8 * (i / 2);
                const int place = kPlaced ? row_place[at] : i0 + column;
                const bool visible = key <= place && key >= row_low[at];
                // Computed for all and then chosen: the compiler makes a branch of it otherwise, which
                // diverges.
                const float probability = ptx::exp2_approx(fmaf(s[n][i], scale, -row_lse[at]));
                s[n][i] = visible ? probability : 0.0f;
                ds[n][i] = s[n][i] * (ds[n][i] - row_delta[at]);
            }
        }
        tile::multiply_accumulator<D>(value_sums, s, upstream);
        tile::multiply_accumulator<D>(key_sums, ds, queries);
    }
    ptx::copy_async_wait<0>();
    tile::store_rows<D>(dv.head(w.first.key, w.column), dv.stride, begin, p.length, values, warp * 16,
                        value_sums, 1.0f, 1.0f);
    tile::store_rows<D>(dk.head(w.first.key, w.column), dk.stride, begin, p.length, keys, warp * 16, key_sums,
                        p.scale, p.scale);
}

// dq_i = scale · Σ_j dS_ij k_j.
template <int D, bool kPlaced>
__global__ void __launch_bounds__(kThreads)
    attention_backward_queries_mma_kernel(View<Bf16> dq, View<const Bf16> dout, const float* lse,
                                          const float* delta, View<const Bf16> q, View<const Bf16> k,
                                          View<const Bf16> v, Problem<kPlaced> p) {
    constexpr int kQueries = Tiles<D>::kOwned, kKeys = Tiles<D>::kBackwardOthers, kTiles = kKeys / 8;
    constexpr int kStage = 2 * kKeys * D;  // elements: keys, then their values
    Bf16* queries = shared_memory<Bf16>(0);
    Bf16* upstream = shared_memory<Bf16>(kQueries * D * 2);
    Bf16* stages = shared_memory<Bf16>(2 * kQueries * D * 2);
    const Where w = where_of_queries(p, kQueries);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kQueries;
    const int end =
        kPlaced ? p.key_end(w.first, min(begin + kQueries, p.queries())) : min(begin + kQueries, p.length);
    const int clear_end = kPlaced ? p.key_end(w.first, begin + 1) : begin + 1;
    const int own = begin + warp * 16 + g;
    const Bf16* k_head = k.head(w.first.key, w.column);
    const Bf16* v_head = v.head(w.first.key, w.column);

    const auto fetch = [&](int stage, int j0) {
        copy_rows_async<kKeys, D, kThreads>(stages + stage * kStage, k_head, k.stride, j0, p.length);
        copy_rows_async<kKeys, D, kThreads>(stages + stage * kStage + kKeys * D, v_head, v.stride, j0,
                                            p.length);
        ptx::copy_async_commit();
    };
    const LowRange low = low_range<kQueries>(p, w.first, begin);
    const int first = low.lowest / kKeys * kKeys;
    if (!kPlaced || first < end) {  // as in the forward
        copy_rows_async<kQueries, D, kThreads>(queries, q.head(w.first.query, w.column), q.stride, begin,
                                               p.queries());
        copy_rows_async<kQueries, D, kThreads>(upstream, dout.head(w.first.query, w.column), dout.stride,
                                               begin, p.queries());
        fetch(0, first);
    }

    int own_low[2], own_place[2];
    float own_lse[2], own_delta[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = own + 8 * h;
        const int64_t statistics = w.head * p.rows + w.first.query + row;
        const bool valid = row < p.queries();
        own_low[h] = valid ? p.low(w.first, row) : 0;
        if constexpr (kPlaced) own_place[h] = valid ? p.place(w.first, row) : p.length;
        own_lse[h] = valid ? lse[statistics] * kLog2E : INFINITY;
        own_delta[h] = valid ? delta[statistics] : 0.0f;
    }
    float sums[D / 8][4] = {};
    const float scale = p.scale * kLog2E;
    int stage = 0;
    for (int j0 = first; j0 < end; j0 += kKeys, stage ^= 1) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // this stage is here, and nobody reads the other one any more
        if (j0 + kKeys < end) fetch(stage ^ 1, j0 + kKeys);
        const Bf16* keys = stages + stage * kStage;

        float s[kTiles][4] = {}, ds[kTiles][4] = {};
        tile::multiply_rows<D>(s, queries, warp * 16, keys);
        tile::multiply_rows<D>(ds, upstream, warp * 16, keys + kKeys * D);
        const bool masked = j0 + kKeys > clear_end || j0 < low.highest;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = i / 2, key = j0 + 8 * n + 2 * t + i % 2;
                const bool visible =
                    !masked || (key <= (kPlaced ? own_place[h] : own + 8 * h) && key >= own_low[h]);
                const float every = ptx::exp2_approx(fmaf(s[n][i], scale, -own_lse[h]));
                const float probability = visible ? every : 0.0f;  // chosen, as above
                ds[n][i] = probability * (ds[n][i] - own_delta[h]);
            }
        }
        tile::multiply_accumulator<D>(sums, ds, keys);
    }
    tile::store_rows<D>(dq.head(w.first.query, w.column), dq.stride, begin, p.queries(), queries, warp * 16,
                        sums, p.scale, p.scale);
}

}  // namespace speedrun::attention
