// Matmuls of Polar Express by wgmma, for compute capability 9.0: the main loop of product_wgmma.cuh with epilogues of its own.
// Symmetric results: tiles with an element on or below the diagonal; blocks of 8 x 8 below it are also stored transposed.
//
// Legend: S side of a symmetric matrix · a panel: 64 columns of a warp's 16 rows, staged in its shared memory.
#pragma once

#include <type_traits>

#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/product_wgmma.cuh"

namespace speedrun::polar_wgmma {

using namespace product_wgmma;

// Tiles of symmetric matrices [batch,S,S].
struct TriangleList {
    static_assert(kColumns == 2 * kRows);
    int of_matrix, count;

    TriangleList(int64_t side, int64_t batch) {
        const auto rows = static_cast<int>((side + kRows - 1) / kRows), pairs = rows / 2;
        of_matrix = pairs * (pairs + 1) + rows % 2 * (pairs + 1);
        count = of_matrix * static_cast<int>(batch);
    }
    // A row of tiles has row / 2 + 1 of them.
    __device__ Tile at(int index) const {
        const int batch = index / of_matrix;
        int col = index - batch * of_matrix, row = 0;
        while (col > row / 2) col -= row++ / 2 + 1;
        return {row * kRows, col * kColumns, batch};
    }
};

// c = alpha·sum (+ beta·addend), rounded to bf16.
template <bool kAddend, bool kSymmetric>
struct Epilogue {
    using Eight = Packed<8, Bf16>;
    struct Nothing {};
    struct Chunks {
        Eight of[kPanels][kPasses];
    };
    using Ahead = std::conditional_t<kAddend, Chunks, Nothing>;

    Bf16* c;
    const Bf16* addend;
    int64_t matrix;  // elements of a matrix of c, and of addend
    int m, n;        // multiples of 8
    float alpha, beta;

    __device__ void start() {}
    __device__ void finish() {}

    // A lane's row and column of a pass over a panel: eight elements.
    __device__ static int row_of(const Place& place, int pass) {
        return place.row + pass * kRowsAtOnce + ptx::lane_id() / 8;
    }
    __device__ static int col_of(const Place& place, int panel) {
        return place.col + panel * kPanelColumns + ptx::lane_id() % 8 * 8;
    }
    __device__ bool stores(int row, int col) const {
        return row < m && col < n && (!kSymmetric || col / 8 <= row / 8);
    }
    __device__ int64_t offset_of(const Place& place, int row, int col) const {
        return place.batch * matrix + int64_t{row} * n + col;
    }

    __device__ Ahead begin(const Place& place) const {
        Ahead ahead;
        if constexpr (kAddend) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
                for (int pass = 0; pass < kPasses; ++pass) {
                    const int row = row_of(place, pass), col = col_of(place, panel);
                    Eight& eight = ahead.of[panel][pass];
                    eight.words[0] = make_uint4(0, 0, 0, 0);
                    if (stores(row, col)) eight = load_packed<8>(addend + offset_of(place, row, col));
                }
            }
        }
        return ahead;
    }

    __device__ void end(const Place& place, const float (&sums)[wgmma::kWideTiles][4], const Ahead& ahead,
                        void* staging) const {
        Bf16* const to = c + offset_of(place, row_of(place, 0), col_of(place, 0));
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
            if (kSymmetric && place.col + panel * kPanelColumns >= place.row + kWarpRows)
                break;  // above the diagonal
            // Two buffers alternate: the barrier of one ends the reads of the other.
            char* const buffer = static_cast<char*>(staging) + panel % 2 * kPanelBytes;
            uint32_t addends[4][4] = {};
            if constexpr (kAddend) exchange_addends(addends, ahead.of[panel], buffer);
#pragma unroll
            for (int four = 0; four < 4; ++four) {
                uint32_t words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&pair)[4] = sums[8 * panel + 2 * four + i / 2];
                    words[i] = rounded(pair[i % 2 * 2], pair[i % 2 * 2 + 1], addends[four][i]);
                }
                ptx::stmatrix_x4(buffer + matrix_offset(four), words);  // over the addends of these words
            }
            __syncwarp();
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const uint4 eight = load_word(reinterpret_cast<const uint4*>(buffer + chunk_offset(pass)));
                const int row = row_of(place, pass), col = col_of(place, panel);
                if (stores(row, col))
                    ptx::store_global(
                        reinterpret_cast<uint4*>(to + pass * kRowsAtOnce * n + panel * kPanelColumns), eight);
            }
            if constexpr (kSymmetric) store_mirrored(place, panel, buffer);
        }
    }

  private:
    __device__ uint32_t rounded(float low, float high, uint32_t addends) const {
        low *= alpha;
        high *= alpha;
        if constexpr (kAddend) {
            low = fmaf(beta, __uint_as_float(addends << 16), low);
            high = fmaf(beta, __uint_as_float(addends & 0xffff0000u), high);
        }
        return ptx::pack_bf16(low, high);
    }

    // A lane receives two rows of a column of two matrices below each other. It exchanges one pair with its neighbor, and then has
    // four rows of one matrix: the lanes of a column write whole sectors.
    __device__ void store_mirrored(const Place& place, int panel, const char* buffer) const {
        const int lane = ptx::lane_id(), odd = lane % 2;
        const int row = place.row + odd * 8 + lane % 4 / 2 * 4;
        Bf16* const to = c + offset_of(place, place.col + panel * kPanelColumns + lane / 4, row);
#pragma unroll
        for (int four = 0; four < 4; ++four) {
            uint32_t pairs[4];
            ptx::ldmatrix_x4_trans(pairs, buffer + matrix_offset(four));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t upper = pairs[2 * i], lower = pairs[2 * i + 1];
                const uint32_t received = __shfl_xor_sync(0xffffffffu, odd ? upper : lower, 1);
                const int columns = (2 * four + i) * 8;  // the first of the matrices' columns in the panel
                if (row >= m || (place.col + panel * kPanelColumns + columns) / 8 >= row / 8) continue;
                uint2 rows;
                rows.x = odd ? received : upper;
                rows.y = odd ? lower : received;
                store_word(reinterpret_cast<uint2*>(to + columns * n), rows);
            }
        }
    }
};

template <class Form, class Tiles, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    polar_product_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, int k,
                         Tiles tiles, Epilogue epilogue) {
    run<Form>(a, b, k, tiles, epilogue);
}

}  // namespace speedrun::polar_wgmma
