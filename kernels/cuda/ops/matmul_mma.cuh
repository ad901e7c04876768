// Matmul on tensor cores, bf16 or FP8. Tiles of a and b are copied asynchronously into a ring of stages: two
// are in flight while one is multiplied. With 128 registers per thread and 96 KiB per block, two blocks share
// a multiprocessor of 227 KiB. A multiprocessor with less shared memory holds one block, which may use more
// registers.
#pragma once

#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/ops/matmul.cuh"

namespace speedrun::product {

constexpr int kTile = 128, kStep = 64, kStages = 3;
constexpr int kWarpRows = 64, kWarpCols = 32;
constexpr int64_t kMmaSharedBytes = kStages * 2 * kTile * kStep * 2;

__device__ inline void write_pair(float* at, float x, float y) {
    store_word(reinterpret_cast<float2*>(at), make_float2(x, y));
}
__device__ inline void write_pair(Bf16* at, float x, float y) {
    *reinterpret_cast<uint32_t*>(at) = ptx::pack_bf16(x, y);
}

// Writes elements col and col + 1, col even.
template <class In, class Out>
__device__ inline void store_pair(const Arguments<In, Out>& p, Out* c, const Out* addend, int row, int col,
                                  float sum, float next_sum, bool mirror) {
    if (mirror || !p.paired || col + 1 >= p.n) {
        store(p, c, addend, row, col, sum, mirror);
        store(p, c, addend, row, col + 1, next_sum, mirror);
    } else if (row < p.m) {
        write_pair(c + row * p.c_stride + col, value_of(p, addend, row, col, sum),
                   value_of(p, addend, row, col + 1, next_sum));
    }
}

// Starts loading kRows × kWidth elements of a stored matrix from (row, col) into a tile; zeros beyond
// (row_end, col_end).
template <int kRows, int kWidth, bool kAligned>
__device__ inline void fetch_tile(Bf16* tile, const Bf16* matrix, int64_t stride, int row0, int row_end,
                                  int col0, int col_end) {
    constexpr int kChunks = kWidth / 8, kRowStep = kThreads / kChunks;
    static_assert(kRowStep % 8 == 0 && kRows % kRowStep == 0);  // all rows of a thread share one permutation
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int col = col0 + chunk * 8, valid = max(0, min(8, col_end - col)), rows_left = row_end - row0 - row;
    const Bf16* source = matrix + (row0 + row) * stride + col;
    Bf16* destination = tile + tile::chunk_offset<kWidth>(row, chunk);
#pragma unroll
    for (int i = 0; i < kRows; i += kRowStep) {
        const int count = i < rows_left ? valid : 0;
        if constexpr (kAligned) {
            ptx::copy_async_16(destination + i * kWidth, count > 0 ? source : matrix, count * 2);
        } else {
            uint32_t pairs[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const uint32_t low = 2 * j < count ? source[2 * j].bits : 0;
                const uint32_t high = 2 * j + 1 < count ? source[2 * j + 1].bits : 0;
                pairs[j] = high << 16 | low;
            }
            store_word(reinterpret_cast<uint4*>(destination + i * kWidth),
                       make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        }
        source += kRowStep * stride;
    }
}

// Blocks per multiprocessor for which registers are limited. On sm_100 loads of single elements spill at 128.
template <bool kAligned>
constexpr int kBlocks = kSm90 || (kSm100 && kAligned) ? 2 : 1;

// Operand type: words of 16 bits along k, in steps of 16 words. FP8 has two elements per word in tiles, in
// fragments and in ldmatrix, where bf16 has one.
struct Bf16Numbers {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1) {
        ptx::mma_bf16(c, a, b0, b1);
    }
};
template <class A, class B>
struct Fp8Pairs {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1) {
        ptx::mma_fp8<A, B>(c, a, b0, b1);
    }
};

template <class Numbers, bool kTransposeA, bool kTransposeB, bool kAligned, class Out>
__device__ __forceinline__ void multiply_tile(const Arguments<Bf16, Out>& p) {
    constexpr int kTileElements = kTile * kStep, kWidthA = kTransposeA ? kTile : kStep,
                  kWidthB = kTransposeB ? kStep : kTile;
    constexpr int kRowTiles = kWarpRows / 16, kColTiles = kWarpCols / 8;
    Bf16* stages = shared_memory<Bf16>(0);  // [kStages][a, b]
    const auto [tile_row, tile_col] = tile_of_block(p.symmetric, (p.n + kTile - 1) / kTile);
    const int row0 = tile_row * kTile, col0 = tile_col * kTile;
    const int64_t matrix = blockIdx.z;
    const Bf16* a = p.a + matrix * p.a_batch;
    const Bf16* b = p.b + matrix * p.b_batch;
    const int begin = static_cast<int>(blockIdx.y) * p.steps_of_part;
    const int end = min(begin + p.steps_of_part, (p.k + kStep - 1) / kStep);

    const auto fetch = [&](int step) {
        if (step < end) {
            Bf16* tile_a = stages + (step - begin) % kStages * 2 * kTileElements;
            Bf16* tile_b = tile_a + kTileElements;
            if constexpr (kTransposeA) {
                fetch_tile<kStep, kTile, kAligned>(tile_a, a, p.a_stride, step * kStep, p.k, row0, p.m);
            } else {
                fetch_tile<kTile, kStep, kAligned>(tile_a, a, p.a_stride, row0, p.m, step * kStep, p.k);
            }
            if constexpr (kTransposeB) {
                fetch_tile<kTile, kStep, kAligned>(tile_b, b, p.b_stride, col0, p.n, step * kStep, p.k);
            } else {
                fetch_tile<kStep, kTile, kAligned>(tile_b, b, p.b_stride, step * kStep, p.k, col0, p.n);
            }
        }
        ptx::copy_async_commit();  // an empty group too, so that groups and steps have equal counts
    };
    for (int s = 0; s < kStages - 1; ++s) fetch(begin + s);

    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_row = warp / (kTile / kWarpCols) * kWarpRows,
              warp_col = warp % (kTile / kWarpCols) * kWarpCols;
    float sums[kRowTiles][kColTiles][4] = {};
    for (int step = begin; step < end; ++step) {
        ptx::copy_async_wait<kStages - 2>();
        __syncthreads();  // this stage has arrived; the one fetched next is no longer read
        fetch(step + kStages - 1);
        const Bf16* tile_a = stages + (step - begin) % kStages * 2 * kTileElements;
        const Bf16* tile_b = tile_a + kTileElements;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#pragma unroll 2  // unrolled fully it spills if both tiles are transposed in loading
#else
#pragma unroll
#endif
        for (int k = 0; k < kStep; k += 16) {
            uint32_t fragment_a[kRowTiles][4], fragment_b[kColTiles / 2][4];
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
                if constexpr (kTransposeA) {
                    tile::load_a_transposed<kWidthA>(fragment_a[i], tile_a, warp_row + 16 * i, k);
                } else {
                    tile::load_a<kWidthA>(fragment_a[i], tile_a, warp_row + 16 * i, k);
                }
            }
#pragma unroll
            for (int j = 0; j < kColTiles / 2; ++j) {
                if constexpr (kTransposeB) {
                    tile::load_b<kWidthB>(fragment_b[j], tile_b, warp_col + 16 * j, k);
                } else {
                    tile::load_b_transposed<kWidthB>(fragment_b[j], tile_b, warp_col + 16 * j, k);
                }
            }
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
                for (int j = 0; j < kColTiles; ++j) {
                    Numbers::multiply(sums[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2],
                                      fragment_b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
    ptx::copy_async_wait<0>();

    Out* c = p.c + matrix * p.c_batch + static_cast<int64_t>(blockIdx.y) * p.part_stride;
    const Out* addend = p.addend ? p.addend + matrix * p.addend_batch : nullptr;
    const bool mirror = p.symmetric && tile_row != tile_col;
    const int g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
            const int row = row0 + warp_row + 16 * i + g, col = col0 + warp_col + 8 * j + 2 * t;
            store_pair(p, c, addend, row, col, sums[i][j][0], sums[i][j][1], mirror);
            store_pair(p, c, addend, row + 8, col, sums[i][j][2], sums[i][j][3], mirror);
        }
    }
}

template <bool kTransposeA, bool kTransposeB, bool kAligned, class Out>
__global__ void __launch_bounds__(kThreads, kBlocks<kAligned>) matmul_mma_kernel(Arguments<Bf16, Out> p) {
    wait_for_prior_kernels();
    multiply_tile<Bf16Numbers, kTransposeA, kTransposeB, kAligned>(p);
}

// a bᵀ, rows and their ends aligned to 16 bytes; p counts pairs along k. One block per multiprocessor:
// Hopper, whose native FP8 instruction is wgmma, widens FP8 in registers.
template <class A, class B, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_fp8_kernel(Arguments<Bf16, Out> p, const float* scale_a, const float* scale_b) {
    wait_for_prior_kernels();
    p.alpha = *scale_a * *scale_b;
    multiply_tile<Fp8Pairs<A, B>, false, true, true>(p);
}

}  // namespace speedrun::product
