// Common code of all matmul kernels: the problem, the tile of a block, and the epilogue of an element of c.
#pragma once

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/launch.h"

namespace speedrun::product {

constexpr int kThreads = 256;

template <class In, class Out>
struct Arguments {
    Out* c;
    const In *a, *b;
    const Out* addend;                                             // null: none
    const float* bias;                                             // null: none
    int64_t c_stride, a_stride, b_stride, addend_stride;           // row strides
    int64_t c_batch, a_batch, b_batch, addend_batch, part_stride;  // strides in a batch and of split sums
    int m, n, k, steps_of_part;
    float alpha, beta;
    bool transpose_a, transpose_b, symmetric,
        paired;  // paired: two adjacent elements of c can be written together
};

struct TileIndex {
    int row, col;
};
// Tile of this block, in row order; if c is symmetric, only of the lower triangle.
__device__ inline TileIndex tile_of_block(bool symmetric, int cols_of_tiles) {
    int index = static_cast<int>(blockIdx.x);
    if (!symmetric) return {index / cols_of_tiles, index % cols_of_tiles};
    int row = 0;
    while (index > row) index -= ++row;
    return {row, index};
}

// Element of c from its sum.
template <class In, class Out>
__device__ inline float value_of(const Arguments<In, Out>& p, const Out* addend, int row, int col,
                                 float sum) {
    float value = p.alpha * sum;
    if (p.bias) value += p.bias[col];
    if (addend) value += p.beta * to_float(addend[row * p.addend_stride + col]);
    return value;
}

template <class In, class Out>
__device__ inline void store(const Arguments<In, Out>& p, Out* c, const Out* addend, int row, int col,
                             float sum, bool mirror) {
    if (row >= p.m || col >= p.n) return;
    const Out value = from_float<Out>(value_of(p, addend, row, col, sum));
    c[row * p.c_stride + col] = value;
    if (mirror) c[col * p.c_stride + row] = value;
}

// Adds the parts of a split sum in order; one thread per element.
template <class Out>
__global__ void matmul_parts_kernel(Arguments<float, Out> p, const float* parts, int num_parts) {
    wait_for_prior_kernels();
    const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= static_cast<int64_t>(p.m) * p.n) return;
    float sum = 0.0f;
    for (int part = 0; part < num_parts; ++part) sum += parts[part * p.part_stride + index];
    store(p, p.c, p.addend, static_cast<int>(index / p.n), static_cast<int>(index % p.n), sum, false);
}

}  // namespace speedrun::product
