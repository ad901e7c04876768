// Attention backward by wgmma: the owner of keys (dk, dv). As the owner of queries (attention_wgmma_queries.cuh), it recomputes the
// probabilities. A tile's last matmuls overlap with the wait for the next tile.
#pragma once

#include "kernels/cuda/ops/attention_wgmma.cuh"

namespace speedrun::attention {

// dv_j = Σ_i P_ij dout_i, dk_j = scale · Σ_i dS_ij q_i with dS = P ∘ (dout vᵀ − delta). All transposed: the
// rows of a matmul are keys, so that P and dS go from sums into the left operands of the second matmuls.
template <int D>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_backward_keys_wgmma_kernel(View<Bf16> dk, View<Bf16> dv, View<const Bf16> dout,
                                         const float* lse, const float* delta, const int32_t* group_low,
                                         View<const Bf16> q, View<const Bf16> k, View<const Bf16> v,
                                         Problem<false> p) {
    wait_for_prior_kernels();
    constexpr int kKeys = kWgmmaOwned, kQueries = kWgmmaOthers, kTiles = kQueries / 8;
    constexpr int kStage = 2 * kQueries * D;  // elements: queries, then their dout
    Bf16* keys = shared_memory<Bf16>(0);
    Bf16* values = shared_memory<Bf16>(kKeys * D * 2);
    Bf16* stages = shared_memory<Bf16>(2 * kKeys * D * 2);
    // [stage][kQueries] each: lse, delta, first_key.
    float* row_lse = shared_memory<float>((2 * kKeys * D + kWgmmaStages * kStage) * 2);
    float* row_delta = row_lse + kWgmmaStages * kQueries;
    int* row_first =
        shared_memory<int>((2 * kKeys * D + kWgmmaStages * kStage) * 2 + 2 * kWgmmaStages * kQueries * 4);
    const Where w = where_of_keys(p);
    const int warp = warp_of_block(), g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int group_row = warp / 4 * wgmma::kRows;
    const int begin = w.tile * kKeys, of_warp = begin + 16 * warp, own[2] = {of_warp + g, of_warp + g + 8};
    const Bf16* q_head = q.head(w.first.query, w.column);
    const Bf16* dout_head = dout.head(w.first.query, w.column);
    const int64_t statistics = w.head * p.rows + w.first.query;

    // Statistics that a thread copies: one value per tile of queries. After the last query all are zero, and
    // so are their contributions.
    const int own_query = static_cast<int>(threadIdx.x) % kQueries,
              array = static_cast<int>(threadIdx.x) / kQueries;
    const auto* const statistic = array == 0   ? reinterpret_cast<const int*>(lse + statistics)
                                  : array == 1 ? reinterpret_cast<const int*>(delta + statistics)
                                               : p.first_key + w.first.query;
    float* const row_statistic = row_lse + array * kWgmmaStages * kQueries + own_query;
    const auto fetch = [&](int stage, int i0) {
        copy_panels<kQueries, D>(stages + stage * kStage, q_head, q.stride, i0, p.length);
        copy_panels<kQueries, D>(stages + stage * kStage + kQueries * D, dout_head, dout.stride, i0,
                                 p.length);
        if (array < 3)
            ptx::copy_async_4(row_statistic + stage * kQueries, statistic + min(i0 + own_query, p.length - 1),
                              i0 + own_query < p.length ? 4 : 0);
        ptx::copy_async_commit();
    };

    const int first = begin, end = query_end(p, group_low, w, first, min(begin + kKeys, p.length));
    copy_panels<kKeys, D>(keys, k.head(w.first.key, w.column), k.stride, begin, p.length);
    copy_panels<kKeys, D>(values, v.head(w.first.key, w.column), v.stride, begin, p.length);
    fetch(0, first);

    const int sequence = static_cast<int>(w.first.key), recent = (p.window > 0 ? p.window : p.length) - 1;
    float key_sums[D / 8][4], value_sums[D / 8][4];
    const float scale = p.scale * kLog2E;
    int stage = 0;
    // One tile of queries. Its last matmuls are still running at the end.
    const auto step = [&]<bool kFirst>(int i0) {
        copies_are_here();
        const int next = stage == kWgmmaStages - 1 ? 0 : stage + 1;
        if (i0 + kQueries < end) fetch(next, i0 + kQueries);  // its readers have been waited for
        const Bf16* queries = stages + stage * kStage;
        const Bf16* upstream = queries + kQueries * D;
        float s[kTiles][4], ds[kTiles][4];
        uint32_t fragments[kTiles / 2][4];
        wgmma::begin(s, ds);
        wgmma::multiply_rows<D, kKeys>(s, keys, group_row, queries);
        wgmma::multiply_rows<D, kKeys>(ds, values, group_row, upstream);
        if constexpr (kFirst)
            wgmma::wait<1>(s);
        else
            wgmma::wait<1>(s, key_sums, value_sums);

        const auto low_of = [&](int column) {
            return max(row_first[stage * kQueries + column] - sequence, i0 + column - recent);
        };
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const float2 l = *reinterpret_cast<const float2*>(row_lse + stage * kQueries + 8 * n + 2 * t);
            const float base[2] = {l.x * kLog2E, l.y * kLog2E};
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] = ptx::exp2_approx(fmaf(s[n][i], scale, -base[i % 2]));
        }
        const int lane = ptx::lane_id();
        if (__any_sync(~0u, i0 < of_warp + 15 || low_of(lane) > of_warp || low_of(lane + 32) > of_warp)) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int column = 8 * n + 2 * t + i % 2, key = own[i / 2];
                    if ((key > i0 + column) | (key < low_of(column))) s[n][i] = 0.0f;  // without a branch
                }
            }
        }
        pack(fragments, s);
        if constexpr (kFirst)
            wgmma::begin();
        else
            wgmma::begin(value_sums);
        wgmma::multiply_columns<D>(value_sums, fragments, upstream, !kFirst);
        wgmma::wait<1>(ds);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const float2 d = *reinterpret_cast<const float2*>(row_delta + stage * kQueries + 8 * n + 2 * t);
            const float deltas[2] = {d.x, d.y};
#pragma unroll
            for (int i = 0; i < 4; ++i) ds[n][i] = s[n][i] * (ds[n][i] - deltas[i % 2]);
        }
        uint32_t scores[kTiles / 2][4];
        pack(scores, ds);
        if constexpr (kFirst)
            wgmma::begin();
        else
            wgmma::begin(key_sums);
        wgmma::multiply_columns<D>(key_sums, scores, queries, !kFirst);
        stage = next;
    };
    step.template operator()<true>(first);
    for (int i0 = first + kQueries; i0 < end; i0 += kQueries) step.template operator()<false>(i0);
    wgmma::wait<0>(key_sums, value_sums);
    __syncthreads();  // keys and values are no longer read
    const int row = 16 * warp_of_block();
    tile::store_rows<D, tile::Panels<kKeys>>(dv.head(w.first.key, w.column), dv.stride, begin, p.length,
                                             values, row, value_sums, 1.0f, 1.0f);
    tile::store_rows<D, tile::Panels<kKeys>>(dk.head(w.first.key, w.column), dk.stride, begin, p.length, keys,
                                             row, key_sums, p.scale, p.scale);
}

}  // namespace speedrun::attention
