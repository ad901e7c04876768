// f32 matmul with multiply-adds: a thread owns 4 × 4 elements of c.
#pragma once

#include "kernels/cuda/ops/matmul.cuh"

namespace speedrun::product {

constexpr int kSmallTile = 64, kSmallStep = 16, kSmallPitch = kSmallTile + 4;
constexpr int64_t kSmallSharedBytes = 2 * kSmallStep * kSmallPitch * 4;

// Loads elements (i, k) of op(a), or (j, k) of op(b), into a tile [kSmallStep][kSmallTile] with k as rows.
__device__ inline void load_small_tile(float* tile, const float* matrix, int64_t stride, bool k_is_row,
                                       int first, int end, int k0, int k_end) {
    for (int index = static_cast<int>(threadIdx.x); index < kSmallTile * kSmallStep; index += kThreads) {
        const int k = k_is_row ? index / kSmallTile : index % kSmallStep;  // coalesced reads
        const int i = k_is_row ? index % kSmallTile : index / kSmallStep;
        const bool valid = first + i < end && k0 + k < k_end;
        const int64_t row = k_is_row ? k0 + k : first + i, col = k_is_row ? first + i : k0 + k;
        tile[k * kSmallPitch + i] = valid ? matrix[row * stride + col] : 0.0f;
    }
}

// Blocks per multiprocessor for which registers are limited; 0: the compiler chooses. On sm_80 and sm_89 it
// would choose four and spill.
constexpr int kSmallBlocks = kArchitecture < 900 ? 3 : 0;
__global__ void __launch_bounds__(kThreads, kSmallBlocks) matmul_f32_kernel(Arguments<float, float> p) {
    wait_for_prior_kernels();
    const auto tile_a = shared_memory<float>(0);
    const auto tile_b = shared_memory<float>(kSmallStep * kSmallPitch * 4);
    const auto [tile_row, tile_col] = tile_of_block(p.symmetric, (p.n + kSmallTile - 1) / kSmallTile);
    const int row0 = tile_row * kSmallTile, col0 = tile_col * kSmallTile;
    const int64_t matrix = blockIdx.z;
    const int begin = static_cast<int>(blockIdx.y) * p.steps_of_part;
    const int end = min(begin + p.steps_of_part, (p.k + kSmallStep - 1) / kSmallStep);
    const int own_row = static_cast<int>(threadIdx.x) / 16 * 4,
              own_col = static_cast<int>(threadIdx.x) % 16 * 4;

    float sums[4][4] = {};
    for (int step = begin; step < end; ++step) {
        __syncthreads();  // the previous tiles are no longer read
        load_small_tile(tile_a, p.a + matrix * p.a_batch, p.a_stride, p.transpose_a, row0, p.m,
                        step * kSmallStep, p.k);
        load_small_tile(tile_b, p.b + matrix * p.b_batch, p.b_stride, !p.transpose_b, col0, p.n,
                        step * kSmallStep, p.k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kSmallStep; ++k) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = tile_a[k * kSmallPitch + own_row + i];
                y[i] = tile_b[k * kSmallPitch + own_col + i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
            }
        }
    }
    float* c = p.c + matrix * p.c_batch + static_cast<int64_t>(blockIdx.y) * p.part_stride;
    const float* addend = p.addend ? p.addend + matrix * p.addend_batch : nullptr;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            store(p, c, addend, row0 + own_row + i, col0 + own_col + j, sums[i][j],
                  p.symmetric && tile_row != tile_col);
        }
    }
}

}  // namespace speedrun::product
