// Attention on tensor cores: bf16 operands, f32 sums and softmax. A warp has one or two strips of 16 rows of
// the tile that its block owns. The block iterates over tiles of the other side. Sizes and shared memory:
// attention.cu.
#pragma once

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/ops/attention.cuh"

namespace speedrun::attention {

using tile::copy_rows_async;

// Kernels are compiled for heads of q and k of D columns, and heads of v and o of Dv: 64 or 128 each.
constexpr int widest(int head_dim, int value_dim) {
    return head_dim > value_dim ? head_dim : value_dim;
}

// First column of the head in v and o. With heads of one width that of q and k: a second number takes registers.
template <int D, int Dv>
__device__ inline int64_t value_column(const Where& w) {
    return D == Dv ? w.column : w.head * Dv;
}

// Rows that a block owns, and rows of the other side per tile: the most for which registers can hold the
// scores and the sums, which have the width of the results. The sums of forward depend on the number of keys
// per tile, so it is equal for all strips, with and without places.
constexpr int kOwned = 128;
constexpr int forward_keys(int value_dim) {
    return value_dim == 128 ? 32 : 64;
}
constexpr int backward_queries(int widest) {
    return widest == 128 ? 32 : 64;
}
constexpr int backward_keys(int head_dim, int strips) {
    return head_dim == 128 || strips == 2 ? 32 : 64;
}

// Threads of a block for this number of strips per warp. With two strips of queries each loaded fragment of
// keys or values is used twice. With one, shared memory takes 1.6 to 1.8 times as long as the matmuls. But a
// block then has half the warps, so two blocks must fit a multiprocessor. Sums of two strips leave too few
// registers for queries at given places, and for owners of keys (sums of dk and dv).
constexpr int threads_of(int strips) {
    return kOwned / (16 * strips) * 32;
}

template <int D, int Dv, bool kPlaced, int kStrips>
__global__ void __launch_bounds__(threads_of(kStrips))
    attention_forward_mma_kernel(View<Bf16> o, float* lse, View<const Bf16> q, View<const Bf16> k,
                                 View<const Bf16> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    constexpr int kWidest = widest(D, Dv), kQueries = kOwned, kKeys = forward_keys(Dv), kTiles = kKeys / 8;
    constexpr int kThreads = threads_of(kStrips);
    Bf16* queries = shared_memory<Bf16>(0);  // and the output, after the last barrier
    Bf16* keys = shared_memory<Bf16>(kQueries * kWidest * 2);
    Bf16* values = shared_memory<Bf16>((kQueries * kWidest + kKeys * D) * 2);
    const Where w = where_of_queries(p, kQueries);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kQueries;
    const int end =
        kPlaced ? p.key_end(w.first, min(begin + kQueries, p.queries())) : min(begin + kQueries, p.length);
    const int clear_end = kPlaced ? p.key_end(w.first, begin + 1) : begin + 1;
    const int strips = warp * 16 * kStrips;  // first row of the warp
    // Query index of this lane.
    const auto own = [&](int r, int h) { return begin + strips + 16 * r + 8 * h + g; };
    const Bf16* k_head = k.head(w.first.key, w.column);
    const Bf16* v_head = v.head(w.first.key, value_column<D, Dv>(w));

    const LowRange low = low_range<kQueries>(p, w.first, begin);
    const int first = low.lowest / kKeys * kKeys;
    // If the queries see no key, every warp writes zeros: no copy into a tile may then be pending.
    if (!kPlaced || first < end) {
        copy_rows_async<kQueries, D, kThreads>(queries, q.head(w.first.query, w.column), q.stride, begin,
                                               p.queries());
        copy_rows_async<kKeys, D, kThreads>(keys, k_head, k.stride, first, p.length);
        ptx::copy_async_commit();
    }

    // Visible keys of the block's queries are kept in shared memory, as sums take most registers. The first
    // loop iteration waits for them.
    int2* row_keys =
        shared_memory<int2>((kQueries * kWidest + kKeys * (D + Dv)) * 2);  // first and last key of each query
    if (const int row = static_cast<int>(threadIdx.x); row < kQueries) {
        const int query = begin + row;
        row_keys[row] = query < p.queries()
                            ? make_int2(p.low(w.first, query), kPlaced ? p.place(w.first, query) : query)
                            : make_int2(0, kPlaced ? p.length : query);
    }
    float maximum[kStrips][2], total[kStrips][2];
#pragma unroll
    for (int r = 0; r < kStrips; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            maximum[r][h] = -INFINITY;
            total[r][h] = 0.0f;
        }
    }
    float sums[kStrips][Dv / 8][4] = {};
    const float scale = p.scale * kLog2E;

    for (int j0 = first; j0 < end; j0 += kKeys) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // keys have arrived; the previous values are no longer read
        copy_rows_async<kKeys, Dv, kThreads>(values, v_head, v.stride, j0, p.length);
        ptx::copy_async_commit();
        float s[kStrips][kTiles][4] = {};
        tile::multiply_rows<D>(s, queries, strips, keys);
        ptx::copy_async_wait<0>();
        __syncthreads();  // values have arrived; these keys are no longer read
        if (j0 + kKeys < end) {
            copy_rows_async<kKeys, D, kThreads>(keys, k_head, k.stride, j0 + kKeys, p.length);
            ptx::copy_async_commit();
        }

        const bool masked = j0 + kKeys > clear_end || j0 < low.highest;
#pragma unroll
        for (int r = 0; r < kStrips; ++r) {
            float raised[2] = {maximum[r][0], maximum[r][1]};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int2 visible = masked ? row_keys[strips + 16 * r + 8 * h + g] : make_int2(0, p.length);
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; ++i) {
                        const int key = j0 + 8 * n + 2 * t + i % 2;
                        s[r][n][i] *= scale;
                        if (masked && (key > visible.y || key < visible.x)) s[r][n][i] = -INFINITY;
                        raised[h] = fmaxf(raised[h], s[r][n][i]);
                    }
                }
            }
            float base[2], factor[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                raised[h] = fmaxf(raised[h], __shfl_xor_sync(~0u, raised[h], 1));
                raised[h] = fmaxf(raised[h], __shfl_xor_sync(~0u, raised[h], 2));
                base[h] = raised[h] == -INFINITY ? 0.0f : raised[h];  // no visible key yet
                factor[h] = ptx::exp2_approx(maximum[r][h] - base[h]);
            }
            // Most tiles do not raise any maximum of the strip: then all factors are 1.
            if (__any_sync(~0u, raised[0] > maximum[r][0] || raised[1] > maximum[r][1])) {
#pragma unroll
                for (int n = 0; n < Dv / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[r][n][i] *= factor[i / 2];
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                maximum[r][h] = raised[h];
                total[r][h] *= factor[h];
            }
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[r][n][i] = ptx::exp2_approx(s[r][n][i] - base[i / 2]);
                    total[r][i / 2] += s[r][n][i];
                }
            }
        }
        tile::multiply_accumulator<Dv>(sums, s, values);
    }

#pragma unroll
    for (int r = 0; r < kStrips; ++r) {
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float& sum = total[r][h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            inverse[h] = kPlaced && sum == 0.0f ? 0.0f : 1.0f / sum;  // 0: no visible key
            if (t == 0 && own(r, h) < p.queries()) {
                lse[w.head * p.rows + w.first.query + own(r, h)] = (maximum[r][h] + log2f(sum)) * kLn2;
            }
        }
        tile::store_rows<Dv>(o.head(w.first.query, value_column<D, Dv>(w)), o.stride, begin, p.queries(),
                             queries, strips + 16 * r, sums[r], inverse[0], inverse[1]);
    }
}

// dv_j = Σ_i P_ij dout_i, dk_j = scale · Σ_i dS_ij q_i with dS = P ∘ (dout vᵀ − delta). All transposed: a
// warp has 16 keys as rows, so that P and dS go from accumulators into the second matmuls.
template <int D, int Dv, bool kPlaced>
__global__ void __launch_bounds__(threads_of(1))
    attention_backward_keys_mma_kernel(View<Bf16> dk, View<Bf16> dv, View<const Bf16> dout, const float* lse,
                                       const float* delta, const int32_t* group_low, View<const Bf16> q,
                                       View<const Bf16> k, View<const Bf16> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    constexpr int kKeys = kOwned, kQueries = backward_queries(widest(D, Dv)), kTiles = kQueries / 8;
    constexpr int kOwn = kKeys * (D + Dv),
                  kStage = kQueries * (D + Dv);  // elements: queries, then their dout
    constexpr int kThreads = threads_of(1);
    Bf16* keys = shared_memory<Bf16>(0);
    Bf16* values = shared_memory<Bf16>(kKeys * D * 2);
    Bf16* stages = shared_memory<Bf16>(kOwn * 2);
    float* row_lse = shared_memory<float>((kOwn + 2 * kStage) * 2);  // [2][kQueries]
    float* row_delta = row_lse + 2 * kQueries;
    int* row_low = shared_memory<int>((kOwn + 2 * kStage) * 2 + 4 * kQueries * 4);
    int* row_place = row_low + 2 * kQueries;  // kPlaced only
    const Where w = where_of_keys(p);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kKeys, own = begin + warp * 16 + g;
    const Bf16* q_head = q.head(w.first.query, w.column);
    const Bf16* dout_head = dout.head(w.first.query, value_column<D, Dv>(w));
    const int64_t statistics = w.head * p.rows + w.first.query;

    const auto fetch = [&](int stage, int i0) {
        copy_rows_async<kQueries, D, kThreads>(stages + stage * kStage, q_head, q.stride, i0, p.queries());
        copy_rows_async<kQueries, Dv, kThreads>(stages + stage * kStage + kQueries * D, dout_head,
                                                dout.stride, i0, p.queries());
        ptx::copy_async_commit();
        const int row = static_cast<int>(threadIdx.x);
        if (row < kQueries && kPlaced) {
            // Rows after the last query repeat it, without a place: loading only some rows would be a branch.
            const int query = min(i0 + row, p.queries() - 1), at = stage * kQueries + row;
            row_lse[at] = lse[statistics + query] * kLog2E;
            row_delta[at] = delta[statistics + query];
            row_low[at] = p.low(w.first, query);
            row_place[at] = i0 + row == query ? p.place(w.first, query) : -1;
        } else if (row < kQueries) {
            const bool valid = i0 + row < p.length;  // after the last query P is exp2(−∞)
            row_lse[stage * kQueries + row] = valid ? lse[statistics + i0 + row] * kLog2E : INFINITY;
            row_delta[stage * kQueries + row] = valid ? delta[statistics + i0 + row] : 0.0f;
            row_low[stage * kQueries + row] = valid ? p.low(w.first, i0 + row) : 0;
        }
    };

    const int first = kPlaced ? p.first_query(w.first, begin) : begin;
    const int end = query_end(p, group_low, w, first, min(begin + kKeys, p.length));
    // If no query sees the keys, every warp writes zeros: no copy into a tile may then be pending.
    if (!kPlaced || first < end) {
        copy_rows_async<kKeys, D, kThreads>(keys, k.head(w.first.key, w.column), k.stride, begin, p.length);
        copy_rows_async<kKeys, Dv, kThreads>(values, v.head(w.first.key, value_column<D, Dv>(w)), v.stride,
                                             begin, p.length);
        fetch(0, first);
    }

    float key_sums[1][D / 8][4] = {}, value_sums[1][Dv / 8][4] = {};
    const float scale = p.scale * kLog2E;
    int stage = 0;
    for (int i0 = first; i0 < end; i0 += kQueries, stage ^= 1) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // this stage has arrived; the other one is no longer read
        if (i0 + kQueries < end) fetch(stage ^ 1, i0 + kQueries);
        const Bf16* queries = stages + stage * kStage;
        const Bf16* upstream = queries + kQueries * D;

        float s[1][kTiles][4] = {}, ds[1][kTiles][4] = {};
        tile::multiply_rows<D>(s, keys, warp * 16, queries);
        tile::multiply_rows<Dv>(ds, values, warp * 16, upstream);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 8 * n + 2 * t + i % 2, at = stage * kQueries + column,
                          key = own + 8 * (i / 2);
                const int place = kPlaced ? row_place[at] : i0 + column;
                const bool visible = key <= place && key >= row_low[at];
                // Computed for all, then selected: otherwise the compiler makes a divergent branch.
                const float probability = ptx::exp2_approx(fmaf(s[0][n][i], scale, -row_lse[at]));
                s[0][n][i] = visible ? probability : 0.0f;
                ds[0][n][i] = s[0][n][i] * (ds[0][n][i] - row_delta[at]);
            }
        }
        tile::multiply_accumulator<Dv>(value_sums, s, upstream);
        tile::multiply_accumulator<D>(key_sums, ds, queries);
    }
    ptx::copy_async_wait<0>();
    tile::store_rows<Dv>(dv.head(w.first.key, value_column<D, Dv>(w)), dv.stride, begin, p.length, values,
                         warp * 16, value_sums[0], 1.0f, 1.0f);
    tile::store_rows<D>(dk.head(w.first.key, w.column), dk.stride, begin, p.length, keys, warp * 16,
                        key_sums[0], p.scale, p.scale);
}

// dq_i = scale · Σ_j dS_ij k_j.
template <int D, int Dv, bool kPlaced, int kStrips>
__global__ void __launch_bounds__(threads_of(kStrips))
    attention_backward_queries_mma_kernel(View<Bf16> dq, View<const Bf16> dout, const float* lse,
                                          const float* delta, View<const Bf16> q, View<const Bf16> k,
                                          View<const Bf16> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    // Before sm_90 two such blocks do not fit, and the compiler lacks registers for more keys.
    constexpr bool kFewKeys = D == 128 && kStrips == 2 && kArchitecture > 0 && kArchitecture < 900;
    constexpr int kQueries = kOwned, kKeys = kFewKeys ? 16 : backward_keys(D, kStrips), kTiles = kKeys / 8;
    constexpr int kOwn = kQueries * (D + Dv), kStage = kKeys * (D + Dv);  // elements: keys, then their values
    constexpr int kThreads = threads_of(kStrips);
    Bf16* queries = shared_memory<Bf16>(0);
    Bf16* upstream = shared_memory<Bf16>(kQueries * D * 2);
    Bf16* stages = shared_memory<Bf16>(kOwn * 2);
    const Where w = where_of_queries(p, kQueries);
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int begin = w.tile * kQueries;
    const int end =
        kPlaced ? p.key_end(w.first, min(begin + kQueries, p.queries())) : min(begin + kQueries, p.length);
    const int clear_end = kPlaced ? p.key_end(w.first, begin + 1) : begin + 1;
    const int strips = warp * 16 * kStrips;
    const Bf16* k_head = k.head(w.first.key, w.column);
    const Bf16* v_head = v.head(w.first.key, value_column<D, Dv>(w));

    const auto fetch = [&](int stage, int j0) {
        copy_rows_async<kKeys, D, kThreads>(stages + stage * kStage, k_head, k.stride, j0, p.length);
        copy_rows_async<kKeys, Dv, kThreads>(stages + stage * kStage + kKeys * D, v_head, v.stride, j0,
                                             p.length);
        ptx::copy_async_commit();
    };
    const LowRange low = low_range<kQueries>(p, w.first, begin);
    const int first = low.lowest / kKeys * kKeys;
    if (!kPlaced || first < end) {  // as in the forward
        copy_rows_async<kQueries, D, kThreads>(queries, q.head(w.first.query, w.column), q.stride, begin,
                                               p.queries());
        copy_rows_async<kQueries, Dv, kThreads>(upstream, dout.head(w.first.query, value_column<D, Dv>(w)),
                                                dout.stride, begin, p.queries());
        fetch(0, first);
    }

    // Statistics of the block's queries are kept in shared memory, as sums take most registers. The first
    // loop iteration waits for them.
    float2* row_statistics = shared_memory<float2>((kOwn + 2 * kStage) * 2);  // lse, delta
    int2* row_keys = reinterpret_cast<int2*>(row_statistics + kQueries);      // first and last visible key
    if (const int row = static_cast<int>(threadIdx.x); row < kQueries) {
        const int query = begin + row;
        const int64_t statistics = w.head * p.rows + w.first.query + query;
        const bool valid = query < p.queries();
        row_statistics[row] =
            valid ? make_float2(lse[statistics] * kLog2E, delta[statistics]) : make_float2(INFINITY, 0.0f);
        row_keys[row] = valid ? make_int2(p.low(w.first, query), kPlaced ? p.place(w.first, query) : query)
                              : make_int2(0, kPlaced ? p.length : query);
    }
    float sums[kStrips][D / 8][4] = {};
    const float scale = p.scale * kLog2E;
    int stage = 0;
    for (int j0 = first; j0 < end; j0 += kKeys, stage ^= 1) {
        ptx::copy_async_wait<0>();
        __syncthreads();  // this stage has arrived; the other one is no longer read
        if (j0 + kKeys < end) fetch(stage ^ 1, j0 + kKeys);
        const Bf16* keys = stages + stage * kStage;

        float s[kStrips][kTiles][4] = {}, ds[kStrips][kTiles][4] = {};
        tile::multiply_rows<D>(s, queries, strips, keys);
        tile::multiply_rows<Dv>(ds, upstream, strips, keys + kKeys * D);
        const bool masked = j0 + kKeys > clear_end || j0 < low.highest;
#pragma unroll
        for (int r = 0; r < kStrips; ++r) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = strips + 16 * r + 8 * h + g;
                const float2 statistics = row_statistics[row];
                const int2 visible_keys = row_keys[row];
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; ++i) {
                        const int key = j0 + 8 * n + 2 * t + i % 2;
                        const bool visible = !masked || (key <= visible_keys.y && key >= visible_keys.x);
                        const float every = ptx::exp2_approx(fmaf(s[r][n][i], scale, -statistics.x));
                        const float probability = visible ? every : 0.0f;  // selected, as above
                        ds[r][n][i] = probability * (ds[r][n][i] - statistics.y);
                    }
                }
            }
        }
        tile::multiply_accumulator<D>(sums, ds, keys);
    }
#pragma unroll
    for (int r = 0; r < kStrips; ++r) {
        tile::store_rows<D>(dq.head(w.first.query, w.column), dq.stride, begin, p.queries(), queries,
                            strips + 16 * r, sums[r], p.scale, p.scale);
    }
}

}  // namespace speedrun::attention
