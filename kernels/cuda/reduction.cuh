// Reductions of a tensor to a few numbers, deterministic: blocks of fixed ranges write partial sums, one
// block adds them. The ranges depend on the sizes alone.
//
// Legend: K sums at once · partial f32 [blocks][K].
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace speedrun {

inline int64_t reduce_blocks(int64_t elements) {
    const int64_t blocks = (elements + tiles::kReduceElements - 1) / tiles::kReduceElements;
    return std::max<int64_t>(1, std::min(blocks, tiles::kReduceMaxBlocks));
}

// body(row, col, chunk, sums) adds its chunk's share to sums[K].
template <int W, int K, class Body>
__global__ void __launch_bounds__(tiles::kReduceThreads)
    reduce_kernel(float* partial, MapShape shape, int64_t chunks, Body body) {
    float sums[K] = {};
    const int64_t items = shape.rows * chunks, stride = int64_t{gridDim.x} * tiles::kReduceThreads;
    for (int64_t item = int64_t{blockIdx.x} * tiles::kReduceThreads + threadIdx.x; item < items;
         item += stride) {
        const int64_t row = shape.rows == 1 ? 0 : item / chunks, col = (item - row * chunks) * W;
        const int64_t left = shape.cols - col;
        body(row, col, Chunk<W>{left < W ? static_cast<int>(left) : W}, sums);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const float total = block_sum(sums[k]);
        if (threadIdx.x == 0) partial[int64_t{blockIdx.x} * K + k] = total;
    }
}

// out[k] (+)= Σ over blocks of partial[block][k]; one block.
template <int K>
__global__ void __launch_bounds__(tiles::kReduceThreads)
    finish_kernel(float* out, const float* partial, int64_t blocks, bool accumulate) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < blocks; i += tiles::kReduceThreads) sum += partial[i * K + k];
        sum = block_sum(sum);
        if (threadIdx.x == 0) out[k] = accumulate ? out[k] + sum : sum;
    }
}

// partial: f32 [reduce_blocks(rows·cols)][K] in the workspace.
template <int W, int K, class Body>
void reduce(float* out, float* partial, MapShape shape, bool accumulate, Body body, LaunchSite site) {
    const int64_t chunks = (shape.cols + W - 1) / W, blocks = reduce_blocks(shape.rows * shape.cols);
    launch(reduce_kernel<W, K, Body>, static_cast<unsigned>(blocks), tiles::kReduceThreads,
           kReduceSharedBytes, site, partial, shape, chunks, body);
    launch(finish_kernel<K>, 1, tiles::kReduceThreads, kReduceSharedBytes, site, out, partial, blocks,
           accumulate);
}

// ---- sums down columns: chunks of rows write partial [chunks][…], of which column c is added in order of
// the chunks

inline int64_t column_chunks(int64_t rows) {
    return std::max<int64_t>(1, std::min(rows / tiles::kColumnRows, tiles::kColumnMaxChunks));
}

// out[c] (+)= Σ over chunks of partial[chunk · stride + c].
template <bool kAccumulate>
__global__ void __launch_bounds__(tiles::kColumnThreads)
    add_chunks_kernel(float* out, const float* partial, int64_t chunks, int64_t stride, int64_t cols) {
    const int64_t col = int64_t{blockIdx.x} * tiles::kColumnThreads + threadIdx.x;
    if (col >= cols) return;
    float sum = kAccumulate ? out[col] : 0.0f;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * stride + col];
    out[col] = sum;
}

inline void add_chunks(float* out, const float* partial, int64_t chunks, int64_t stride, int64_t cols,
                       bool accumulate, LaunchSite site) {
    launch(accumulate ? add_chunks_kernel<true> : add_chunks_kernel<false>,
           grid_of(cols, tiles::kColumnThreads), tiles::kColumnThreads, 0, site, out, partial, chunks, stride,
           cols);
}

}  // namespace speedrun
