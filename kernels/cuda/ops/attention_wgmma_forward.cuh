// Forward attention with wgmma: persistent blocks of a producer warp and two warpgroups. The producer copies tiles of keys and
// values, and the next queries while a block still works on the last ones. Softmax overlaps with matmuls as in FlashAttention-3 (Shah
// et al. 2024, sections 3.1 and 3.2): within a warpgroup, the weighted sum of a tile's values runs while the next tile's scores become
// probabilities; between warpgroups, each starts matmuls while the other computes probabilities.
#pragma once

#include "kernels/cuda/ops/attention_wgmma.cuh"

namespace speedrun::attention {

// Running maximum (times scale and log2(e)) and sum of this lane's two rows.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};

    // s: scores of a tile, replaced by their probabilities before division by the sum. factor: rescales all
    // earlier sums.
    template <int kTiles>
    __device__ void take(float (&s)[kTiles][4], float (&factor)[2], float scale) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = s[0][2 * h];
#pragma unroll
            for (int n = 0; n < kTiles; ++n) highest = fmaxf(highest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            const float raised = fmaxf(maximum[h], highest * scale);
            const float base = raised == -INFINITY ? 0.0f : raised;  // no visible key yet
            factor[h] = ptx::exp2_approx(maximum[h] - base);
            maximum[h] = raised;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; ++i) {
                    s[n][i] = ptx::exp2_approx(fmaf(s[n][i], scale, -base));
                    sum += s[n][i];
                }
            }
            total[h] = fmaf(total[h], factor[h], sum);
        }
    }
};

// Shared memory of a block, in elements of Bf16 and then bytes.
template <int D, int Dv>
struct ForwardLayout {
    static constexpr int kQueries = kWgmmaOwned, kKeys = 128, kStages = 2;
    // Bytes of a tile of queries or keys, and of a tile of values or output.
    static constexpr int kTileBytes = kKeys * kColumns<D> * 2, kValueTileBytes = kKeys * kColumns<Dv> * 2;
    static constexpr int64_t kKeysAt = int64_t{kTileBytes} + kValueTileBytes,
                             kValuesAt = kKeysAt + kStages * int64_t{kTileBytes},
                             kBarriers = kValuesAt + kStages * int64_t{kValueTileBytes},
                             kBytes = kBarriers + (2 + 4 * kStages) * 8 + kItemBytes;
    static_assert(kQueries == kKeys);

    __device__ static Bf16* queries() { return shared_memory<Bf16>(0); }
    __device__ static Bf16* output() { return shared_memory<Bf16>(kTileBytes); }
    __device__ static Bf16* keys(int stage) {
        return shared_memory<Bf16>(kKeysAt + stage * int64_t{kTileBytes});
    }
    __device__ static Bf16* values(int stage) {
        return shared_memory<Bf16>(kValuesAt + stage * int64_t{kValueTileBytes});
    }
    static constexpr int kBuffers = 2 * kStages;
    // full: the producer's bytes have arrived; empty: all warps have read them.
    __device__ static mbarrier::Barrier* barrier(int index) {
        return shared_memory<mbarrier::Barrier>(kBarriers) + index;
    }
    __device__ static mbarrier::Barrier* owned_full() { return barrier(0); }
    __device__ static mbarrier::Barrier* owned_empty() { return barrier(1); }
    __device__ static mbarrier::Barrier* full(int tile) { return barrier(2 + tile); }
    __device__ static mbarrier::Barrier* empty(int tile) { return barrier(2 + 2 * kStages + tile); }
    // The current item, with its first key, a multiple of kKeys.
    __device__ static int* item() { return shared_memory<int>(kBarriers + (2 + 4 * kStages) * 8); }
};

// Producer warp. Tile n of all keys goes to stage n % kStages.
template <int D, int Dv>
__device__ inline void produce(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                               const Problem<false>& p, const ItemOrder& order) {
    using L = ForwardLayout<D, Dv>;
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
            mbarrier::expect_bytes(L::owned_full(), L::kTileBytes);
            copy_tile<D, L::kQueries>(L::queries(), q, L::owned_full(), w, begin, sequence);
            for (int j0 = first; j0 < end; j0 += L::kKeys, ++n) {
                const int stage = n % L::kStages, parity = (n / L::kStages + 1) % 2;
                mbarrier::wait(L::empty(stage), parity);
                mbarrier::expect_bytes(L::full(stage), L::kTileBytes);
                copy_tile<D, L::kKeys>(L::keys(stage), k, L::full(stage), w, j0, sequence);
                mbarrier::wait(L::empty(L::kStages + stage), parity);
                mbarrier::expect_bytes(L::full(L::kStages + stage), L::kValueTileBytes);
                copy_tile<Dv, L::kKeys>(L::values(stage), v, L::full(L::kStages + stage), w, j0, sequence);
            }
        }
    }
}

// Turns of the two warpgroups at starting matmuls.
__device__ inline void wait_for_turn(int group) {
    named_barrier::wait_turn<kWgmmaThreads>(1 + group);
}
__device__ inline void end_turn(int group) {
    named_barrier::end_turn<kWgmmaThreads>(2 - group);
}

// Warpgroup `group`, which owns rows 64·group … 64·group + 63 of each tile of queries.
template <int D, int Dv>
__device__ inline void consume(View<Bf16> o, float* lse, const Problem<false>& p, const ItemOrder& order) {
    using L = ForwardLayout<D, Dv>;
    constexpr int kKeys = L::kKeys, kTiles = kKeys / 8;
    const int warp = warp_of_block() % 4, group = warp_of_block() / 4, group_row = group * wgmma::kRows;
    const int g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const float scale = p.scale * kLog2E;
    if (group == 1) end_turn(group);  // warpgroup 0 begins
    int round = 0, n = 0;
    for (int index = static_cast<int>(blockIdx.x); index < order.count;
         index += static_cast<int>(gridDim.x), ++round) {
        mbarrier::wait(L::owned_full(), round % 2);
        const Where w = passed_item(p, L::item()).where;
        const int begin = w.tile * L::kQueries, end = min(begin + L::kQueries, p.length);
        const int of_warp = begin + group_row + 16 * warp, own[2] = {of_warp + g, of_warp + g + 8};
        int low[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) low[h] = own[h] < p.length ? p.low(w.first, own[h]) : 0;
        int highest_low = 0;
        Softmax softmax;
        float factor[2];
        // Masks the keys of the tile at j0 that the warp's rows do not see.
        const auto hide = [&](float(&s)[kTiles][4], int j0) {
            if (j0 + kKeys <= of_warp + 1 && j0 >= highest_low) return;
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int key = j0 + 8 * m + 2 * t + i % 2;
                    if ((key > own[i / 2]) | (key < low[i / 2])) s[m][i] = -INFINITY;  // without a branch
                }
            }
        };
        float sums[kColumns<Dv> / 8][4] = {};
        uint32_t probabilities[kTiles / 2][4];

        int j0 = L::item()[3];
        {
            float s[kTiles][4];
            mbarrier::wait(L::full(n % L::kStages), n / L::kStages % 2);
            wait_for_turn(group);
            wgmma::begin(s);
            wgmma::multiply_rows<D, L::kQueries>(s, L::queries(), group_row, L::keys(n % L::kStages));
            end_turn(group);
            highest_low = warp_highest(max(low[0], low[1]));  // its loads have had the time of the waits
            wgmma::wait<0>(s);
            arrive_of_warp(L::empty(n % L::kStages));
            if (j0 + kKeys >= end) arrive_of_warp(L::owned_empty());
            hide(s, j0);
            softmax.take(s, factor, scale);
            pack(probabilities, s);
        }
        for (j0 += kKeys; j0 < end; j0 += kKeys) {
            const int before = n % L::kStages,
                      value_parity = n / L::kStages % 2;  // parity of the previous values
            ++n;
            const int stage = n % L::kStages;
            float s[kTiles][4];
            mbarrier::wait(L::full(stage), n / L::kStages % 2);
            mbarrier::wait(L::full(L::kStages + before), value_parity);
            wait_for_turn(group);
            wgmma::begin(s, sums);
            wgmma::multiply_rows<D, L::kQueries>(s, L::queries(), group_row, L::keys(stage));
            wgmma::multiply_columns<kColumns<Dv>>(sums, probabilities, L::values(before), true);
            end_turn(group);
            wgmma::wait<1>(s);
            arrive_of_warp(L::empty(stage));
            if (j0 + kKeys >= end)
                arrive_of_warp(L::owned_empty());  // the next ones arrive during the rest of this item
            hide(s, j0);
            softmax.take(s, factor, scale);
            wgmma::finish_before_wait(s);
            wgmma::wait<0>(sums);
            arrive_of_warp(L::empty(L::kStages + before));
#pragma unroll
            for (int m = 0; m < kColumns<Dv> / 8; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[m][i] *= factor[i / 2];
            }
            pack(probabilities, s);
        }
        const int last = L::kStages + n % L::kStages;
        mbarrier::wait(L::full(last), n / L::kStages % 2);
        wgmma::begin(sums);
        wgmma::multiply_columns<kColumns<Dv>>(sums, probabilities, L::values(n % L::kStages), true);
        wgmma::wait<0>(sums);
        arrive_of_warp(L::empty(last));
        ++n;

        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float& sum = softmax.total[h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            inverse[h] = 1.0f / sum;
            if (t == 0 && own[h] < p.length)
                lse[w.head * p.rows + w.first.query + own[h]] = (softmax.maximum[h] + log2f(sum)) * kLn2;
        }
        tile::store_rows<Dv, tile::Panels<L::kQueries>>(o.head(w.first.query, w.head * p.value_dim), o.stride,
                                                        begin, p.length, L::output(), group_row + 16 * warp,
                                                        sums, inverse[0], inverse[1]);
    }
}

template <int D, int Dv>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    attention_forward_wgmma_kernel(View<Bf16> o, float* lse, const __grid_constant__ TensorMap q,
                                   const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                   Problem<false> p, ItemOrder order) {
    using L = ForwardLayout<D, Dv>;
    wait_for_prior_kernels();
    init_barriers<L>(q, k, v);
    // The block has 384·168 registers: 128·24 + 256·240.
    const int warp = warp_of_block();
    if (warp >= kWgmmaThreads / 32) {
        registers::decrease<24>();
        if (warp == kWgmmaThreads / 32) produce<D, Dv>(q, k, v, p, order);
    } else {
        registers::increase<240>();
        consume<D, Dv>(o, lse, p, order);
    }
}

}  // namespace speedrun::attention
