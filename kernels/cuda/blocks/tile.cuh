// Tiles of bf16 in shared memory, and the mma.sync fragments read from them. Used by attention.cu and
// matmul.cu.
//
// A tile has rows of kWidth elements (a multiple of 64). The 16-byte chunks of a row are permuted by the row
// index. So eight rows of one chunk column, which ldmatrix reads, are in different banks. Layout Rows keeps
// the chunks of a row together. Layout Panels stores 64 columns of all rows, then the next 64, as wgmma.h
// requires.
#pragma once

#include "kernels/cuda/blocks/ptx.h"

namespace speedrun::tile {

// Offset of 8 elements, chunk `chunk` of row `row`.
template <int kWidth>
__device__ inline int chunk_offset(int row, int chunk) {
    static_assert(kWidth % 64 == 0);
    return row * kWidth + (chunk ^ (row & 7)) * 8;
}

template <int kWidth>
struct Rows {
    __device__ static int offset(int row, int chunk) { return chunk_offset<kWidth>(row, chunk); }
};
template <int kRows>
struct Panels {
    __device__ static int offset(int row, int chunk) {
        return chunk / 8 * kRows * 64 + chunk_offset<64>(row, chunk % 8);
    }
};

// Fragment a[i][k], i < 16, k < 16, of a tile stored [i][k] (rows from i, chunks from k/8).
template <int kWidth>
__device__ inline void load_a(uint32_t (&a)[4], const Bf16* tile, int i, int k) {
    const int lane = ptx::lane_id();
    ptx::ldmatrix_x4(a, tile + chunk_offset<kWidth>(i + (lane & 15), k / 8 + (lane >> 4)));
}
// Loads that fragment of a from a tile stored [k][i].
template <int kWidth>
__device__ inline void load_a_transposed(uint32_t (&a)[4], const Bf16* tile, int i, int k) {
    const int lane = ptx::lane_id();
    ptx::ldmatrix_x4_trans(
        a, tile + chunk_offset<kWidth>(k + (lane & 7) + (lane >> 4) * 8, i / 8 + ((lane >> 3) & 1)));
}
// Fragments b[k][j], k < 16, of j < 8 (b[0], b[1]) and of 8 ≤ j < 16 (b[2], b[3]), of a tile stored [j][k].
template <int kWidth>
__device__ inline void load_b(uint32_t (&b)[4], const Bf16* tile, int j, int k) {
    const int lane = ptx::lane_id();
    ptx::ldmatrix_x4(
        b, tile + chunk_offset<kWidth>(j + (lane & 7) + (lane >> 4) * 8, k / 8 + ((lane >> 3) & 1)));
}
// Loads that fragment of b from a tile stored [k][j].
template <int kWidth>
__device__ inline void load_b_transposed(uint32_t (&b)[4], const Bf16* tile, int j, int k) {
    const int lane = ptx::lane_id();
    ptx::ldmatrix_x4_trans(b, tile + chunk_offset<kWidth>(k + (lane & 15), j / 8 + (lane >> 4)));
}

// Fragment a of an accumulator, columns 16·n … 16·n + 15, rounded to bf16.
template <int kTiles>
__device__ inline void pack_a(uint32_t (&a)[4], const float (&c)[kTiles][4], int n) {
    a[0] = ptx::pack_bf16(c[2 * n][0], c[2 * n][1]);
    a[1] = ptx::pack_bf16(c[2 * n][2], c[2 * n][3]);
    a[2] = ptx::pack_bf16(c[2 * n + 1][0], c[2 * n + 1][1]);
    a[3] = ptx::pack_bf16(c[2 * n + 1][2], c[2 * n + 1][3]);
}

// Each strip of c (16 × 8·kTiles) += its 16 rows of a · b over kWidth of k. a: tile stored [i][k],
// consecutive strips from row i on; b: tile stored [j][k]. A fragment of b is loaded once for all strips.
template <int kWidth, int kStrips, int kTiles>
__device__ inline void multiply_rows(float (&c)[kStrips][kTiles][4], const Bf16* a_tile, int i,
                                     const Bf16* b_tile) {
    // Sums of two strips leave few registers for prefetching.
    [[maybe_unused]] constexpr int kUnroll = kStrips == 1 ? kWidth / 16 : 2;
#pragma unroll kUnroll
    for (int k = 0; k < kWidth; k += 16) {
        uint32_t a[kStrips][4];
#pragma unroll
        for (int r = 0; r < kStrips; ++r) load_a<kWidth>(a[r], a_tile, i + 16 * r, k);
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
            uint32_t b[4];
            load_b<kWidth>(b, b_tile, 8 * n, k);
#pragma unroll
            for (int r = 0; r < kStrips; ++r) {
                ptx::mma_bf16(c[r][n], a[r], b[0], b[1]);
                ptx::mma_bf16(c[r][n + 1], a[r], b[2], b[3]);
            }
        }
    }
}

// Each strip of c (16 × kWidth) += its p · b. p: an accumulator (16 × 8·kTiles) rounded to bf16; b: tile
// stored [k][j].
template <int kWidth, int kStrips, int kTiles>
__device__ inline void multiply_accumulator(float (&c)[kStrips][kWidth / 8][4],
                                            const float (&p)[kStrips][kTiles][4], const Bf16* b_tile) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) {
        uint32_t a[kStrips][4];
#pragma unroll
        for (int r = 0; r < kStrips; ++r) pack_a(a[r], p[r], k);
#pragma unroll
        for (int n = 0; n < kWidth / 8; n += 2) {
            uint32_t b[4];
            load_b_transposed<kWidth>(b, b_tile, 8 * n, 16 * k);
#pragma unroll
            for (int r = 0; r < kStrips; ++r) {
                ptx::mma_bf16(c[r][n], a[r], b[0], b[1]);
                ptx::mma_bf16(c[r][n + 1], a[r], b[2], b[3]);
            }
        }
    }
}

// Starts copying rows begin … begin + kRows of a matrix (columns 0 … kWidth) into a tile; rows from `end` on
// become zero. Called by all kThreads threads.
template <int kRows, int kWidth, int kThreads, class Layout = Rows<kWidth>>
__device__ inline void copy_rows_async(Bf16* tile, const Bf16* matrix, int64_t stride, int begin, int end) {
    constexpr int kChunks = kWidth / 8;
    static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
        const int index = i * kThreads + static_cast<int>(threadIdx.x);
        const int row = index / kChunks, chunk = index % kChunks;
        const bool valid = begin + row < end;
        ptx::copy_async_16(tile + Layout::offset(row, chunk),
                           matrix + (valid ? begin + row : 0) * stride + chunk * 8, valid ? 16 : 0);
    }
}

// Writes 16 rows of a warp's accumulator, times factor[row half], to rows i … i + 15 of a tile that no other warp uses: columns
// 0 … kWidth. The warp's lanes may read them afterwards.
template <int kWidth, class Layout = Rows<kWidth>, int kTiles>
__device__ inline void stage_rows(Bf16* tile, int i, const float (&c)[kTiles][4], float factor_low,
                                  float factor_high) {
    static_assert(kWidth <= 8 * kTiles);
    const int g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
        *reinterpret_cast<uint32_t*>(tile + Layout::offset(i + g, n) + 2 * t) =
            ptx::pack_bf16(c[n][0] * factor_low, c[n][1] * factor_low);
        *reinterpret_cast<uint32_t*>(tile + Layout::offset(i + g + 8, n) + 2 * t) =
            ptx::pack_bf16(c[n][2] * factor_high, c[n][3] * factor_high);
    }
    __syncwarp();
}

// Copies rows i … i + 15 of a tile to rows begin + i … of a matrix, up to `end`. Warp.
template <int kWidth, class Layout = Rows<kWidth>>
__device__ inline void store_staged_rows(Bf16* matrix, int64_t stride, int begin, int end, const Bf16* tile,
                                         int i) {
    const int lane = ptx::lane_id();
    // A request stores 64 columns of four rows, or 32 of eight.
#pragma unroll
    for (int column = 0; column < kWidth; column += 64) {
        const int lanes = min(kWidth - column, 64) / 8, rows = 32 / lanes;
        const int row = i + lane / lanes, chunk = column / 8 + lane % lanes;
        Bf16* to = matrix + (begin + row) * stride + chunk * 8;
#pragma unroll
        for (int r = 0; r < 16; r += rows, to += rows * stride) {
            const uint4 word =
                load_word(reinterpret_cast<const uint4*>(tile + Layout::offset(row + r, chunk)));
            if (begin + row + r < end) ptx::store_global(reinterpret_cast<uint4*>(to), word);
        }
    }
}

// Writes 16 rows of a warp's accumulator, times factor[row half], to rows begin + i … of a matrix, up to `end`: columns 0 … kWidth.
// Stages them in rows i … i + 15 of a tile that no other warp uses.
template <int kWidth, class Layout = Rows<kWidth>, int kTiles>
__device__ inline void store_rows(Bf16* matrix, int64_t stride, int begin, int end, Bf16* tile, int i,
                                  const float (&c)[kTiles][4], float factor_low, float factor_high) {
    stage_rows<kWidth, Layout>(tile, i, c, factor_low, factor_high);
    store_staged_rows<kWidth, Layout>(matrix, stride, begin, end, tile, i);
}

}  // namespace speedrun::tile
