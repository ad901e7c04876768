// Attention backward by wgmma: the owner of keys, dv_j = Σ_i P_ij dout_i, dk_j = scale · Σ_i dS_ij q_i with dS = P ∘ (dout vᵀ − delta).
// All transposed: the rows of a matmul are keys, so that P and dS go from sums into the left operands of the second matmuls.
// Persistent blocks of a producer warp and two warpgroups. A tile's last matmul overlaps with the first ones of the next tile.
#pragma once

#include <algorithm>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/ops/attention_wgmma_rotary.cuh"

namespace speedrun::attention {

// Shared memory of a block: keys, values, output, stages of queries and dout, statistics of the stages, barriers.
template <int D, int Dv>
struct KeysLayout {
    static constexpr int kKeys = kWgmmaOwned, kQueries = kWgmmaOthers, kStages = kWgmmaStages;
    // The block has 384·168 registers.
    static constexpr int kProducerRegisters = kColumns<D> + kColumns<Dv> == 128 ? 40 : 24,
                         kConsumerRegisters = (3 * 168 - kProducerRegisters) / 2;
    static constexpr int kKeysBytes = kKeys * kColumns<D> * 2, kValuesBytes = kKeys * kColumns<Dv> * 2,
                         kOwnedBytes = kKeysBytes + kValuesBytes,
                         kOutputBytes = std::max(kKeysBytes, kValuesBytes);
    static constexpr int kQueriesBytes = kQueries * kColumns<D> * 2,
                         kTilesBytes = kQueriesBytes + kQueries * kColumns<Dv> * 2;  // queries and dout
    static constexpr int kFloatBytes = Statistics::kFloats * 4, kIntBytes = Statistics::kInts * 4,
                         kStatisticBytes = kFloatBytes + kIntBytes;
    static_assert(kQueries == Statistics::kPart);
    static constexpr int64_t kStagesAt = int64_t{kOwnedBytes} + kOutputBytes,
                             kStatistics = kStagesAt + kStages * int64_t{kTilesBytes},
                             kBarriers = kStatistics + kStages * int64_t{kStatisticBytes},
                             kBytes = kBarriers + (2 + 2 * kStages) * 8 + kItemBytes;

    __device__ static Bf16* keys() { return shared_memory<Bf16>(0); }
    __device__ static Bf16* values() { return shared_memory<Bf16>(kKeysBytes); }
    __device__ static Bf16* output() { return shared_memory<Bf16>(kOwnedBytes); }
    __device__ static Bf16* queries(int stage) {
        return shared_memory<Bf16>(kStagesAt + stage * int64_t{kTilesBytes});
    }
    __device__ static Bf16* upstream(int stage) { return queries(stage) + kQueries * kColumns<D>; }
    __device__ static float* base(int stage) {
        return shared_memory<float>(kStatistics + stage * int64_t{kStatisticBytes});
    }
    __device__ static float* delta(int stage) { return base(stage) + kQueries; }
    __device__ static int* low(int stage) { return reinterpret_cast<int*>(base(stage) + 2 * kQueries); }
    __device__ static int* highest_low(int stage) { return low(stage) + kQueries; }
    static constexpr int kBuffers = kStages;
    // full: the producers' bytes have arrived; empty: all warps have read them.
    __device__ static mbarrier::Barrier* barrier(int index) {
        return shared_memory<mbarrier::Barrier>(kBarriers) + index;
    }
    __device__ static mbarrier::Barrier* owned_full() { return barrier(0); }
    __device__ static mbarrier::Barrier* owned_empty() { return barrier(1); }
    __device__ static mbarrier::Barrier* full(int stage) { return barrier(2 + stage); }
    __device__ static mbarrier::Barrier* empty(int stage) { return barrier(2 + kStages + stage); }
    // The current item, with the end of the queries that see its keys.
    __device__ static int* item() { return shared_memory<int>(kBarriers + (2 + 2 * kStages) * 8); }
};

// Fills the scratch memory that does not depend on heads: one block of 256 threads per sequence and tile. A tile of keys has at least one
// query.
__global__ void __launch_bounds__(256) attention_visible_kernel(Statistics scratch, Problem<false> p) {
    wait_for_prior_kernels();
    constexpr int kPart = Statistics::kPart;
    const int tiles = tiles_of(p.length), block = static_cast<int>(blockIdx.x), sequence = block / tiles,
              thread = static_cast<int>(threadIdx.x);
    const FirstRows first = p.first_of(sequence);
    const int begin = block % tiles * kWgmmaOwned, key_end = min(begin + kWgmmaOwned, p.length);
    const int limit = p.window > 0 ? min(key_end - 1 + p.window, p.length) : p.length;
    int end = begin + 1;
    for (int i = begin + thread; i < limit; i += static_cast<int>(blockDim.x))
        if (p.low(first, i) < key_end) end = i + 1;
    const uint32_t last = block_max(static_cast<uint32_t>(end));
    if (thread == 0) scratch.query_ends[block] = static_cast<int>(last);

    const int low = thread < kWgmmaOwned && begin + thread < p.length ? p.low(first, begin + thread) : 0;
#pragma unroll
    for (int part = 0; part < kWgmmaOwned / kPart; ++part) {
        const bool inside = thread / kPart == part;
        const uint32_t highest =
            block_max(inside ? static_cast<uint32_t>(low) : 0u, (part + 1) * kReduceSharedBytes);
        int* const to = scratch.ints(p, sequence, block % tiles * (kWgmmaOwned / kPart) + part);
        if (inside) to[thread % kPart] = low;
        if (thread < 4) to[kPart + thread] = static_cast<int>(highest);
    }
}

// Producer warp. Tile n of all queries goes to stage n % kStages.
template <int D, int Dv>
__device__ inline void produce_for_keys(const TensorMap& q, const TensorMap& dout, const TensorMap& k,
                                        const TensorMap& v, const Statistics& scratch,
                                        const Problem<false>& p, const ItemOrder& order) {
    using L = KeysLayout<D, Dv>;
    int round = 0, stage = 0, parity = 1;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        const Item item = item_of_keys(p, order, index);
        const auto& [w, sequence] = item;
        const int begin = w.tile * L::kKeys, end = scratch.query_ends[sequence * tiles_of(p.length) + w.tile];
        if (ptx::lane_id() == 0) {
            mbarrier::wait(L::owned_empty(), (round + 1) % 2);
            pass_item(L::item(), item, end);
            mbarrier::expect_bytes(L::owned_full(), L::kOwnedBytes);
            copy_tile<D, L::kKeys>(L::keys(), k, L::owned_full(), w, begin, sequence);
            copy_tile<Dv, L::kKeys>(L::values(), v, L::owned_full(), w, begin, sequence);
            const float* floats = scratch.floats(p, item, begin / L::kQueries);
            const int* ints = scratch.ints(p, sequence, begin / L::kQueries);
            for (int i0 = begin; i0 < end; i0 += L::kQueries) {
                mbarrier::wait(L::empty(stage), parity);
                mbarrier::expect_bytes(L::full(stage), L::kTilesBytes + L::kStatisticBytes);
                copy_tile<D, L::kQueries>(L::queries(stage), q, L::full(stage), w, i0, sequence);
                copy_tile<Dv, L::kQueries>(L::upstream(stage), dout, L::full(stage), w, i0, sequence);
                copy_bytes(L::base(stage), floats, L::kFloatBytes, L::full(stage));
                copy_bytes(L::low(stage), ints, L::kIntBytes, L::full(stage));
                floats += Statistics::kFloats;
                ints += Statistics::kInts;
                stage = stage == L::kStages - 1 ? 0 : stage + 1;
                parity ^= stage == 0;
            }
        }
    }
}

// Two warpgroups, which own 64 rows each of a tile of keys.
template <int D, int Dv>
__device__ inline void compute_keys(View<Bf16> dk, View<Bf16> dv, const Rotary& rotary,
                                    const Problem<false>& p, const ItemOrder& order) {
    using L = KeysLayout<D, Dv>;
    constexpr int kKeys = L::kKeys, kQueries = L::kQueries, kTiles = kQueries / 8;
    const int warp = warp_of_block(), group_row = warp / 4 * wgmma::kRows, g = ptx::lane_id() / 4,
              t = ptx::lane_id() % 4;
    const float scale = p.scale * kLog2E;
    int round = 0, stage = 0, parity = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        mbarrier::wait(L::owned_full(), round % 2);
        const Where w = passed_item(p, L::item()).where;
        const int begin = w.tile * kKeys, of_warp = begin + 16 * warp;
        float key_sums[kColumns<D> / 8][4], value_sums[kColumns<Dv> / 8][4];
        // One tile of queries. Its last matmul is still running at the end.
        const auto step = [&]<bool kFirst>(int i0) {
            mbarrier::wait(L::full(stage), parity);
            const Bf16* const queries = L::queries(stage);
            const Bf16* const upstream = L::upstream(stage);
            float s[kTiles][4], ds[kTiles][4];
            // Without this wait the operands of both last matmuls are live during the first ones: too many registers.
            if constexpr (!kFirst) wgmma::wait<1>(value_sums);
            wgmma::begin(s, ds);
            wgmma::multiply_rows<D, kKeys>(s, L::keys(), group_row, queries);
            wgmma::multiply_rows<Dv, kKeys>(ds, L::values(), group_row, upstream);
            if constexpr (kFirst) {
                wgmma::wait<1>(s);
            } else {
                wgmma::wait<1>(s, key_sums);
                arrive_of_warp(L::empty(stage == 0 ? L::kStages - 1 : stage - 1));
            }
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const auto& pair = *reinterpret_cast<const float2*>(L::base(stage) + 8 * n + 2 * t);
                const float base[2] = {pair.x, pair.y};
#pragma unroll
                for (int i = 0; i < 4; ++i) s[n][i] = ptx::exp2_approx(fmaf(s[n][i], scale, base[i % 2]));
            }
            if (i0 < of_warp + 15 || *L::highest_low(stage) > of_warp) {
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
                    const auto& pair = *reinterpret_cast<const int2*>(L::low(stage) + 8 * n + 2 * t);
                    const int low[2] = {pair.x, pair.y};
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int query = i0 + 8 * n + 2 * t + i % 2, key = of_warp + g + i / 2 * 8;
                        if ((key > query) | (key < low[i % 2])) s[n][i] = 0.0f;  // without a branch
                    }
                }
            }
            uint32_t probabilities[kTiles / 2][4], scores[kTiles / 2][4];
            wgmma::finish_before_wait(s);
            wgmma::wait<0>(ds);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const auto& pair = *reinterpret_cast<const float2*>(L::delta(stage) + 8 * n + 2 * t);
                const float deltas[2] = {pair.x, pair.y};
#pragma unroll
                for (int i = 0; i < 4; ++i) ds[n][i] = s[n][i] * (ds[n][i] - deltas[i % 2]);
            }
            pack(probabilities, s);
            pack(scores, ds);
            if constexpr (kFirst)
                wgmma::begin();
            else
                wgmma::begin(value_sums, key_sums);
            wgmma::multiply_columns<kColumns<Dv>>(value_sums, probabilities, upstream, !kFirst);
            wgmma::multiply_columns<kColumns<D>>(key_sums, scores, queries, !kFirst);
            stage = stage == L::kStages - 1 ? 0 : stage + 1;
            parity ^= stage == 0;
        };
        const int end = L::item()[3];
        step.template operator()<true>(begin);
        for (int i0 = begin + kQueries; i0 < end; i0 += kQueries) step.template operator()<false>(i0);
        RotaryRows<D, tile::Panels<kKeys>> rows;
        if (rotary.present())
            rows.read(rotary, L::keys(), 16 * warp, w.first.key, static_cast<int>(w.head), begin, p.length);
        arrive_of_warp(L::owned_empty());  // the next ones arrive during the rest of this item
        wgmma::wait<0>(value_sums, key_sums);
        arrive_of_warp(L::empty(stage == 0 ? L::kStages - 1 : stage - 1));
        tile::store_rows<Dv, tile::Panels<kKeys>>(dv.head(w.first.key, w.head * p.value_dim), dv.stride,
                                                  begin, p.length, L::output(), 16 * warp, value_sums, 1.0f,
                                                  1.0f);
        store_gradient(dk.head(w.first.key, w.head * p.head_dim), dk.stride, begin, p.length, L::output(),
                       16 * warp, key_sums, p.scale, rotary, rows);
    }
}

template <int D, int Dv>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    attention_backward_keys_wgmma_kernel(View<Bf16> dk, View<Bf16> dv, Statistics scratch,
                                         const __grid_constant__ TensorMap q,
                                         const __grid_constant__ TensorMap dout,
                                         const __grid_constant__ TensorMap k,
                                         const __grid_constant__ TensorMap v, Rotary rotary, Problem<false> p,
                                         ItemOrder order) {
    using L = KeysLayout<D, Dv>;
    wait_for_prior_kernels();
    init_barriers<L>(q, dout, k, v);
    const int warp = warp_of_block();
    if (warp >= kWgmmaThreads / 32) {
        registers::decrease<L::kProducerRegisters>();
        if (warp == kWgmmaThreads / 32) produce_for_keys<D, Dv>(q, dout, k, v, scratch, p, order);
    } else {
        registers::increase<L::kConsumerRegisters>();
        compute_keys<D, Dv>(dk, dv, rotary, p, order);
    }
}

}  // namespace speedrun::attention
