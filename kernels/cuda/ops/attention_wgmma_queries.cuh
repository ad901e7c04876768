// Attention backward by wgmma: the owner of queries, dq_i = scale · Σ_j dS_ij k_j with dS = P ∘ (dout vᵀ − delta). It also computes
// delta_i = dout_i · o_i (Dao et al. 2022, algorithm 4, line 19), as dout is in shared memory. Persistent blocks of a producer warp and two
// warpgroups, as in forward. The last matmul of a tile of keys overlaps with the wait for the next one.
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/attention_wgmma_rotary.cuh"

namespace speedrun::attention {

// Shared memory of a block: queries, dout, output, stages of keys and values, barriers.
template <int D, int Dv>
struct QueriesLayout {
    static constexpr int kQueries = kWgmmaOwned, kKeys = kWgmmaOthers, kStages = kWgmmaStages;
    static constexpr int kQueriesBytes = kQueries * kColumns<D> * 2,  // also of the output
        kUpstreamBytes = kQueries * kColumns<Dv> * 2, kOwnedBytes = kQueriesBytes + kUpstreamBytes;
    static constexpr int kKeysBytes = kKeys * kColumns<D> * 2,
                         kStageBytes = kKeysBytes + kKeys * kColumns<Dv> * 2;
    static constexpr int64_t kStagesAt = int64_t{kOwnedBytes} + kQueriesBytes,
                             kBarriers = kStagesAt + kStages * int64_t{kStageBytes},
                             kBytes = kBarriers + (2 + 2 * kStages) * 8 + kItemBytes;

    __device__ static Bf16* queries() { return shared_memory<Bf16>(0); }
    __device__ static Bf16* upstream() { return shared_memory<Bf16>(kQueriesBytes); }
    __device__ static Bf16* output() { return shared_memory<Bf16>(kOwnedBytes); }
    __device__ static Bf16* keys(int stage) {
        return shared_memory<Bf16>(kStagesAt + stage * int64_t{kStageBytes});
    }
    __device__ static Bf16* values(int stage) { return keys(stage) + kKeys * kColumns<D>; }
    static constexpr int kBuffers = kStages;
    // full: the producer's bytes have arrived; empty: all warps have read them.
    __device__ static mbarrier::Barrier* barrier(int index) {
        return shared_memory<mbarrier::Barrier>(kBarriers) + index;
    }
    __device__ static mbarrier::Barrier* owned_full() { return barrier(0); }
    __device__ static mbarrier::Barrier* owned_empty() { return barrier(1); }
    __device__ static mbarrier::Barrier* full(int stage) { return barrier(2 + stage); }
    __device__ static mbarrier::Barrier* empty(int stage) { return barrier(2 + kStages + stage); }
    // The current item, with its first key, a multiple of kKeys.
    __device__ static int* item() { return shared_memory<int>(kBarriers + (2 + 2 * kStages) * 8); }
};

// Producer warp. Tile n of all keys and values goes to stage n % kStages.
template <int D, int Dv>
__device__ inline void produce_for_queries(const TensorMap& q, const TensorMap& dout, const TensorMap& k,
                                           const TensorMap& v, const Problem<false>& p,
                                           const ItemOrder& order) {
    using L = QueriesLayout<D, Dv>;
    int round = 0, n = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        const Item item = item_at(p, order, index);
        const auto& [w, sequence] = item;
        const int begin = w.tile * L::kQueries, end = min(begin + L::kQueries, p.length);
        const int first = low_range<L::kQueries>(p, w.first, begin).lowest / L::kKeys * L::kKeys;
        if (ptx::lane_id() == 0) {
            mbarrier::wait(L::owned_empty(), (round + 1) % 2);
            pass_item(L::item(), item, first);
            mbarrier::expect_bytes(L::owned_full(), L::kOwnedBytes);
            copy_tile<D, L::kQueries>(L::queries(), q, L::owned_full(), w, begin, sequence);
            copy_tile<Dv, L::kQueries>(L::upstream(), dout, L::owned_full(), w, begin, sequence);
            for (int j0 = first; j0 < end; j0 += L::kKeys, ++n) {
                const int stage = n % L::kStages;
                mbarrier::wait(L::empty(stage), (n / L::kStages + 1) % 2);
                mbarrier::expect_bytes(L::full(stage), L::kStageBytes);
                copy_tile<D, L::kKeys>(L::keys(stage), k, L::full(stage), w, j0, sequence);
                copy_tile<Dv, L::kKeys>(L::values(stage), v, L::full(stage), w, j0, sequence);
            }
        }
    }
}

// Chunk c of this lane, in a row of D columns that four lanes share. Lanes of neighbouring rows read different banks of a tile.
template <int D>
__device__ inline int chunk_of_lane(int c, int row) {
    const bool paired = (c / 2 + 1) * 64 <= D;
    return (4 * c + ptx::lane_id() % 4) ^ (paired ? (row & 1) * 4 : 0);
}

// Two warpgroups, which own 64 rows each of a tile of queries.
template <int D, int Dv>
__device__ inline void compute_queries(View<Bf16> dq, const Statistics& scratch, View<const Bf16> o,
                                       const float* lse, const Rotary& rotary, const Problem<false>& p,
                                       const ItemOrder& order) {
    using L = QueriesLayout<D, Dv>;
    constexpr int kKeys = L::kKeys, kTiles = kKeys / 8;
    const int warp = warp_of_block(), group_row = warp / 4 * wgmma::kRows, g = ptx::lane_id() / 4,
              t = ptx::lane_id() % 4;
    const float scale = p.scale * kLog2E;
    int round = 0, stage = 0, parity = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        mbarrier::wait(L::owned_full(), round % 2);
        const Item item = passed_item(p, L::item());
        const Where& w = item.where;
        const int begin = w.tile * L::kQueries, end = min(begin + L::kQueries, p.length);
        const int of_warp = begin + 16 * warp, own[2] = {of_warp + g, of_warp + g + 8};
        constexpr int kChunks = Dv / 32;
        float base[2], deltas[2];
        int low[2];
        Packed<8, Bf16> outputs[2][kChunks];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool valid = own[h] < p.length;
            const int64_t query = w.first.query + (valid ? own[h] : begin);
            const Bf16* const row = o.head(query, w.head * p.value_dim);
#pragma unroll
            for (int c = 0; c < kChunks; ++c)
                outputs[h][c] = load_packed<8>(row + 8 * chunk_of_lane<Dv>(c, g));
            base[h] = valid ? lse[w.head * p.rows + query] * kLog2E
                            : INFINITY;  // after the last query P is exp2(−∞)
            low[h] = valid ? p.low(w.first, own[h]) : 0;
        }
        // Rows after the last query have a dout of zero.
        const auto compute_delta = [&] {
            static_assert(Statistics::kPart == wgmma::kRows);
            float* const part = scratch.floats(p, item, 2 * w.tile + warp / 4);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = 16 * warp + g + 8 * h;
                deltas[h] = 0.0f;
#pragma unroll
                for (int c = 0; c < kChunks; ++c) {
                    const int chunk = chunk_of_lane<Dv>(c, g);
                    const auto x =
                        load_vector<8>(L::upstream() + tile::Panels<L::kQueries>::offset(row, chunk));
                    const auto y = unpack(outputs[h][c]);
#pragma unroll
                    for (int i = 0; i < 8; ++i) deltas[h] = fmaf(x[i], y[i], deltas[h]);
                }
                deltas[h] = group_sum(deltas[h], 4);
                if (t == 0) {
                    part[row % wgmma::kRows] = -base[h];
                    part[Statistics::kPart + row % wgmma::kRows] = deltas[h];
                }
            }
        };
        int highest_low = 0;
        float sums[kColumns<D> / 8][4];
        // One tile of keys. Its last matmul is still running at the end.
        const auto step = [&]<bool kFirst>(int j0) {
            mbarrier::wait(L::full(stage), parity);
            float s[kTiles][4], ds[kTiles][4];
            wgmma::begin(s, ds);
            wgmma::multiply_rows<D, L::kQueries>(s, L::queries(), group_row, L::keys(stage));
            wgmma::multiply_rows<Dv, L::kQueries>(ds, L::upstream(), group_row, L::values(stage));
            if constexpr (kFirst) {
                compute_delta();
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
            wgmma::multiply_columns<kColumns<D>>(sums, scores, L::keys(stage), !kFirst);
            stage = stage == L::kStages - 1 ? 0 : stage + 1;
            parity ^= stage == 0;
        };
        highest_low = warp_highest(max(low[0], low[1]));
        const int first = L::item()[3];
        step.template operator()<true>(first);
        for (int j0 = first + kKeys; j0 < end; j0 += kKeys) step.template operator()<false>(j0);
        RotaryRows<D, tile::Panels<L::kQueries>> rows;
        if (rotary.present())
            rows.read(rotary, L::queries(), 16 * warp, w.first.query, static_cast<int>(w.head), begin,
                      p.length);
        arrive_of_warp(L::owned_empty());  // the next ones arrive during the rest of this item
        wgmma::wait<0>(sums);
        arrive_of_warp(L::empty(stage == 0 ? L::kStages - 1 : stage - 1));
        store_gradient(dq.head(w.first.query, w.head * p.head_dim), dq.stride, begin, p.length, L::output(),
                       16 * warp, sums, p.scale, rotary, rows);
    }
}

template <int D, int Dv>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    attention_backward_queries_wgmma_kernel(View<Bf16> dq, Statistics scratch, View<const Bf16> o,
                                            const float* lse, const __grid_constant__ TensorMap q,
                                            const __grid_constant__ TensorMap dout,
                                            const __grid_constant__ TensorMap k,
                                            const __grid_constant__ TensorMap v, Rotary rotary,
                                            Problem<false> p, ItemOrder order) {
    using L = QueriesLayout<D, Dv>;
    wait_for_prior_kernels();
    init_barriers<L>(q, dout, k, v);
    const int warp = warp_of_block();
    if (warp >= kWgmmaThreads / 32) {
        registers::decrease<24>();
        if (warp == kWgmmaThreads / 32) produce_for_queries<D, Dv>(q, dout, k, v, p, order);
    } else {
        registers::increase<240>();
        compute_queries<D, Dv>(dq, scratch, o, lse, rotary, p, order);
    }
}

}  // namespace speedrun::attention
