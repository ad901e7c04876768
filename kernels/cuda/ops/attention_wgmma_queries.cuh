// Attention backward by wgmma: the owner of queries, dq_i = scale · Σ_j dS_ij k_j with dS = P ∘ (dout vᵀ − delta). Persistent blocks of a
// producer warp and two warpgroups, as in forward. The last matmul of a tile of keys overlaps with the wait for the next one.
#pragma once

#include "kernels/cuda/ops/attention_wgmma.cuh"

namespace speedrun::attention {

// Shared memory of a block: queries, dout, output, stages of keys and values, barriers.
template <int D>
struct QueriesLayout {
    static constexpr int kQueries = kWgmmaOwned, kKeys = kWgmmaOthers, kStages = kWgmmaStages;
    static constexpr int kOwnedBytes = kQueries * D * 2, kKeysBytes = kKeys * D * 2;
    static constexpr int64_t kBarriers = 3 * int64_t{kOwnedBytes} + kStages * 2 * int64_t{kKeysBytes};
    static constexpr int64_t kBytes = kBarriers + (3 + 2 * kStages) * 8;

    __device__ static Bf16* queries() { return shared_memory<Bf16>(0); }
    __device__ static Bf16* upstream() { return shared_memory<Bf16>(kOwnedBytes); }
    __device__ static Bf16* output() { return shared_memory<Bf16>(2 * int64_t{kOwnedBytes}); }
    __device__ static Bf16* keys(int stage) {
        return shared_memory<Bf16>(3 * int64_t{kOwnedBytes} + stage * 2 * int64_t{kKeysBytes});
    }
    __device__ static Bf16* values(int stage) { return keys(stage) + kKeys * D; }
    static constexpr int kBuffers = kStages;
    // full: the producer's bytes have arrived; empty: all warps have read them.
    __device__ static mbarrier::Barrier* barrier(int index) {
        return shared_memory<mbarrier::Barrier>(kBarriers) + index;
    }
    __device__ static mbarrier::Barrier* queries_full() { return barrier(0); }
    __device__ static mbarrier::Barrier* queries_empty() { return barrier(1); }
    __device__ static mbarrier::Barrier* full(int stage) { return barrier(2 + stage); }
    __device__ static mbarrier::Barrier* empty(int stage) { return barrier(2 + kStages + stage); }
    // First key of the current queries, a multiple of kKeys.
    __device__ static int* first_key() { return shared_memory<int>(kBarriers + (2 + 2 * kStages) * 8); }
};

// Producer warp. Tile n of all keys and values goes to stage n % kStages.
template <int D>
__device__ inline void produce_for_queries(const TensorMap& q, const TensorMap& dout, const TensorMap& k,
                                           const TensorMap& v, const Problem<false>& p,
                                           const ItemOrder& order) {
    using L = QueriesLayout<D>;
    int round = 0, n = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        const auto [w, sequence] = item_at(p, order, index);
        const int begin = w.tile * L::kQueries, end = min(begin + L::kQueries, p.length);
        const int first = low_range<L::kQueries>(p, w.first, begin).lowest / L::kKeys * L::kKeys;
        if (ptx::lane_id() == 0) {
            mbarrier::wait(L::queries_empty(), (round + 1) % 2);
            *L::first_key() = first;
            mbarrier::expect_bytes(L::queries_full(), 2 * L::kOwnedBytes);
            copy_tile<D, L::kQueries>(L::queries(), q, L::queries_full(), w, begin, sequence);
            copy_tile<D, L::kQueries>(L::upstream(), dout, L::queries_full(), w, begin, sequence);
            for (int j0 = first; j0 < end; j0 += L::kKeys, ++n) {
                const int stage = n % L::kStages;
                mbarrier::wait(L::empty(stage), (n / L::kStages + 1) % 2);
                mbarrier::expect_bytes(L::full(stage), 2 * L::kKeysBytes);
                copy_tile<D, L::kKeys>(L::keys(stage), k, L::full(stage), w, j0, sequence);
                copy_tile<D, L::kKeys>(L::values(stage), v, L::full(stage), w, j0, sequence);
            }
        }
    }
}

// Two warpgroups, which own 64 rows each of a tile of queries.
template <int D>
__device__ inline void compute_queries(View<Bf16> dq, const float* lse, const float* delta,
                                       const Problem<false>& p, const ItemOrder& order) {
    using L = QueriesLayout<D>;
    constexpr int kKeys = L::kKeys, kTiles = kKeys / 8;
    const int warp = warp_of_block(), group_row = warp / 4 * wgmma::kRows, g = ptx::lane_id() / 4,
              t = ptx::lane_id() % 4;
    const float scale = p.scale * kLog2E;
    int round = 0, stage = 0, parity = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        const Where w = item_at(p, order, index).where;
        const int begin = w.tile * L::kQueries, end = min(begin + L::kQueries, p.length);
        const int of_warp = begin + 16 * warp, own[2] = {of_warp + g, of_warp + g + 8};
        float base[2], deltas[2];
        int low[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool valid = own[h] < p.length;
            const int64_t at = w.head * p.rows + w.first.query + (valid ? own[h] : begin);
            base[h] = valid ? lse[at] * kLog2E : INFINITY;  // after the last query P is exp2(−∞)
            deltas[h] = delta[at];
            low[h] = valid ? p.low(w.first, own[h]) : 0;
        }
        int highest_low = 0;
        float sums[D / 8][4];
        // One tile of keys. Its last matmul is still running at the end.
        const auto step = [&]<bool kFirst>(int j0) {
            mbarrier::wait(L::full(stage), parity);
            float s[kTiles][4], ds[kTiles][4];
            wgmma::begin(s, ds);
            wgmma::multiply_rows<D, L::kQueries>(s, L::queries(), group_row, L::keys(stage));
            wgmma::multiply_rows<D, L::kQueries>(ds, L::upstream(), group_row, L::values(stage));
            if constexpr (kFirst) {
                wgmma::wait<1>(s);
            } else {
                wgmma::wait<1>(s, sums);
                arrive_of_warp(L::empty(stage == 0 ? L::kStages - 1 : stage - 1));
            }
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[n][i] = ptx::exp2_approx(fmaf(s[n][i], scale, -base[i / 2]));
            }
            if (j0 + kKeys > of_warp + 1 || j0 < highest_low) {
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int key = j0 + 8 * n + 2 * t + i % 2;
                        if ((key > own[i / 2]) | (key < low[i / 2])) s[n][i] = 0.0f;
                    }
                }
            }
            wgmma::finish_before_wait(s);
            wgmma::wait<0>(ds);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) ds[n][i] = s[n][i] * (ds[n][i] - deltas[i / 2]);
            }
            uint32_t scores[kTiles / 2][4];
            pack(scores, ds);
            if constexpr (kFirst)
                wgmma::begin();
            else
                wgmma::begin(sums);
            wgmma::multiply_columns<D>(sums, scores, L::keys(stage), !kFirst);
            stage = stage == L::kStages - 1 ? 0 : stage + 1;
            parity ^= stage == 0;
        };
        mbarrier::wait(L::queries_full(), round % 2);
        highest_low = warp_highest(max(low[0], low[1]));
        const int first = *L::first_key();
        step.template operator()<true>(first);
        for (int j0 = first + kKeys; j0 < end; j0 += kKeys) step.template operator()<false>(j0);
        arrive_of_warp(L::queries_empty());  // the next ones arrive during the rest of this item
        wgmma::wait<0>(sums);
        arrive_of_warp(L::empty(stage == 0 ? L::kStages - 1 : stage - 1));
        tile::store_rows<D, tile::Panels<L::kQueries>>(dq.head(w.first.query, w.column), dq.stride, begin,
                                                       p.length, L::output(), 16 * warp, sums, p.scale,
                                                       p.scale);
    }
}

template <int D>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    attention_backward_queries_wgmma_kernel(View<Bf16> dq, const float* lse, const float* delta,
                                            const __grid_constant__ TensorMap q,
                                            const __grid_constant__ TensorMap dout,
                                            const __grid_constant__ TensorMap k,
                                            const __grid_constant__ TensorMap v, Problem<false> p,
                                            ItemOrder order) {
    using L = QueriesLayout<D>;
    wait_for_prior_kernels();
    init_barriers<L>();
    const int warp = warp_of_block();
    if (warp >= kWgmmaThreads / 32) {
        registers::decrease<24>();
        if (warp == kWgmmaThreads / 32) produce_for_queries<D>(q, dout, k, v, p, order);
    } else {
        registers::increase<240>();
        compute_queries<D>(dq, lse, delta, p, order);
    }
}

}  // namespace speedrun::attention
