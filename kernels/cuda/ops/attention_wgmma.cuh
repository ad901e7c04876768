// Attention with wgmma (wgmma.h, compute capability 9.0): bf16 operands, f32 sums and softmax, one query per
// key. Two warpgroups of a block own 64 rows each. Both iterate over tiles of the other side, prefetched by
// cp.async. Softmax overlaps with matmuls as in FlashAttention-3 (Shah et al. 2024, section 3.2): the
// weighted sum of a tile's values runs while the next tile's scores become probabilities. Sizes and shared
// memory: attention_wgmma.cu.
#pragma once

#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/blocks/wgmma.h"
#include "kernels/cuda/ops/attention.cuh"

namespace speedrun::attention {

// Rows that a block owns, and rows of the other side per tile.
constexpr int kWgmmaOwned = 128, kWgmmaKeys = 128, kWgmmaOthers = 64, kWgmmaStages = 3;
constexpr int kWgmmaThreads = kWgmmaOwned / wgmma::kRows * wgmma::kThreads;

// Starts copying rows begin … begin + kRows of a head into a tile; rows from `end` on become zero. A thread's
// rows are a multiple of eight apart, so their chunks have the same permutation and share one shared-memory
// address.
template <int kRows, int D>
__device__ inline void copy_panels(Bf16* tile, const Bf16* head, int64_t stride, int begin, int end) {
    constexpr int kChunks = D / 8, kApart = kWgmmaThreads / kChunks;
    static_assert(kApart % 8 == 0 && kRows % kApart == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    Bf16* const to = tile + tile::Panels<kRows>::offset(row, chunk);
    const int apart =
        kApart * static_cast<int>(stride);  // 32 bits are enough for a sequence: checked by the launcher
    // With many rows per thread, separate code for whole tiles pays; otherwise its registers do not.
    if (kRows / kApart > 4 && begin + kRows <= end) {
        const Bf16* const from = head + (begin + row) * static_cast<int>(stride) + chunk * 8;
#pragma unroll
        for (int i = 0; i < kRows / kApart; ++i)
            ptx::copy_async_16(to + i * kApart * 64, from + i * apart, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < kRows / kApart; ++i) {
        const int at = begin + row + i * kApart;  // the last row, if none is read
        ptx::copy_async_16(to + i * kApart * 64,
                           head + min(at, end - 1) * static_cast<int>(stride) + chunk * 8, at < end ? 16 : 0);
    }
}

// Index of this thread's warp, known to the compiler to be uniform over its lanes.
__device__ inline int warp_of_block() {
    return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

// Waits until the copies of all threads have arrived, visible to matmuls too.
__device__ inline void copies_are_here() {
    ptx::copy_async_wait<0>();
    wgmma::fence_async_proxy();
    __syncthreads();
}

// Fragments of a matmul's left operand from sums, rounded to bf16.
template <int kTiles>
__device__ inline void pack(uint32_t (&a)[kTiles / 2][4], const float (&c)[kTiles][4]) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) tile::pack_a(a[k], c, k);
}

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

template <int D>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_forward_wgmma_kernel(View<Bf16> o, float* lse, View<const Bf16> q, View<const Bf16> k,
                                   View<const Bf16> v, Problem<false> p) {
    wait_for_prior_kernels();
    constexpr int kQueries = kWgmmaOwned, kKeys = kWgmmaKeys, kTiles = kKeys / 8;
    Bf16* queries = shared_memory<Bf16>(0);
    Bf16* keys = shared_memory<Bf16>(kQueries * D * 2);                  // [2]
    Bf16* values = shared_memory<Bf16>((kQueries + 2 * kKeys) * D * 2);  // [2]
    const Where w = where_of_queries(p, kQueries);
    const int warp = warp_of_block(), g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    const int group_row = warp / 4 * wgmma::kRows;  // first row of the warpgroup in the tile
    const int begin = w.tile * kQueries, end = min(begin + kQueries, p.length);
    const int of_warp = begin + 16 * warp, own[2] = {of_warp + g, of_warp + g + 8};
    const Bf16* k_head = k.head(w.first.key, w.column);
    const Bf16* v_head = v.head(w.first.key, w.column);

    const int first = low_range<kQueries>(p, w.first, begin).lowest / kKeys * kKeys;
    copy_panels<kQueries, D>(queries, q.head(w.first.query, w.column), q.stride, begin, p.length);
    copy_panels<kKeys, D>(keys, k_head, k.stride, first, p.length);
    ptx::copy_async_commit();

    int low[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) low[h] = own[h] < p.length ? p.low(w.first, own[h]) : 0;
    const int highest_low = warp_highest(max(low[0], low[1]));
    const float scale = p.scale * kLog2E;
    Softmax softmax;
    float factor[2];
    // Masks the keys of the tile at j0 that the warp's rows do not see.
    const auto hide = [&](float(&s)[kTiles][4], int j0) {
        if (j0 + kKeys <= of_warp + 1 && j0 >= highest_low) return;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = j0 + 8 * n + 2 * t + i % 2;
                if ((key > own[i / 2]) | (key < low[i / 2])) s[n][i] = -INFINITY;  // without a branch
            }
        }
    };

    float sums[D / 8][4] = {};
    uint32_t probabilities[kTiles / 2][4];
    int stage = 0;
    {
        copies_are_here();
        copy_panels<kKeys, D>(values, v_head, v.stride, first, p.length);
        if (first + kKeys < end)
            copy_panels<kKeys, D>(keys + kKeys * D, k_head, k.stride, first + kKeys, p.length);
        ptx::copy_async_commit();
        float s[kTiles][4];
        wgmma::begin(s);
        wgmma::multiply_rows<D, kQueries>(s, queries, group_row, keys);
        wgmma::wait<0>(s);
        hide(s, first);
        softmax.take(s, factor, scale);
        pack(probabilities, s);
    }
    for (int j0 = first + kKeys; j0 < end; j0 += kKeys) {
        stage ^= 1;
        copies_are_here();  // these keys and the previous values have arrived; all matmuls on the other
                            // stages are complete
        copy_panels<kKeys, D>(values + stage * kKeys * D, v_head, v.stride, j0, p.length);
        if (j0 + kKeys < end)
            copy_panels<kKeys, D>(keys + (stage ^ 1) * kKeys * D, k_head, k.stride, j0 + kKeys, p.length);
        ptx::copy_async_commit();
        float s[kTiles][4];
        wgmma::begin(s, sums);
        wgmma::multiply_rows<D, kQueries>(s, queries, group_row, keys + stage * kKeys * D);
        wgmma::multiply_columns<D>(sums, probabilities, values + (stage ^ 1) * kKeys * D, true);
        wgmma::wait<1>(s);
        hide(s, j0);
        softmax.take(s, factor, scale);
        wgmma::finish_before_wait(s);
        wgmma::wait<0>(sums);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
        }
        pack(probabilities, s);
    }
    copies_are_here();
    wgmma::begin(sums);
    wgmma::multiply_columns<D>(sums, probabilities, values + stage * kKeys * D, true);
    wgmma::wait<0>(sums);

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
    // Own rows of the warp in the query tile. The other warps of its warpgroup read them before the last
    // barrier.
    tile::store_rows<D, tile::Panels<kQueries>>(o.head(w.first.query, w.column), o.stride, begin, p.length,
                                                queries, 16 * warp, sums, inverse[0], inverse[1]);
}

}  // namespace speedrun::attention
