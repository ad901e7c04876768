// Deterministic reductions of a tensor to a few scalars: blocks of fixed ranges write partial sums, and one
// block adds them. The ranges depend on the sizes alone.
//
// Legend: K number of sums · partial f32 [blocks][K].
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"

namespace speedrun {

inline int64_t reduce_blocks(int64_t elements) {
    const int64_t blocks = (elements + sizes::kReduceElements - 1) / sizes::kReduceElements;
    return std::max<int64_t>(1, std::min(blocks, sizes::kReduceMaxBlocks));
}

// body(row, col, chunk, sums) adds its chunk's terms to sums[K].
template <int W, int K, class Body>
__global__ void __launch_bounds__(sizes::kReduceThreads)
    reduce_kernel(float* partial, MapShape shape, int64_t chunks, Body body) {
    wait_for_prior_kernels();
    float sums[K] = {};
    const int64_t items = shape.rows * chunks, stride = int64_t{gridDim.x} * sizes::kReduceThreads;
    for (int64_t item = int64_t{blockIdx.x} * sizes::kReduceThreads + threadIdx.x; item < items;
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
__global__ void __launch_bounds__(sizes::kReduceThreads)
    finish_kernel(float* out, const float* partial, int64_t blocks, bool accumulate) {
    wait_for_prior_kernels();
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < blocks; i += sizes::kReduceThreads) sum += partial[i * K + k];
        sum = block_sum(sum);
        if (threadIdx.x == 0) out[k] = accumulate ? out[k] + sum : sum;
    }
}

// partial: f32 [reduce_blocks(rows·cols)][K] in the workspace.
template <int W, int K, class Body>
void reduce(float* out, float* partial, MapShape shape, bool accumulate, Body body, LaunchSite site) {
    const int64_t chunks = (shape.cols + W - 1) / W, blocks = reduce_blocks(shape.rows * shape.cols);
    launch(reduce_kernel<W, K, Body>, static_cast<unsigned>(blocks), sizes::kReduceThreads,
           kReduceSharedBytes, site, partial, shape, chunks, body);
    launch(finish_kernel<K>, 1, sizes::kReduceThreads, kReduceSharedBytes, site, out, partial, blocks,
           accumulate);
}

// ---- column sums: chunks of rows write partial [chunks][sums][cols], then the chunks are added

inline int64_t column_chunks(int64_t rows) {
    return std::max<int64_t>(1, std::min(rows / sizes::kColumnRows, sizes::kColumnMaxChunks));
}

// One warp per group of chunks, one lane per column. Group g of G adds chunks g, g + G, …, with several loads
// in flight; then the groups are added in order. The order depends on the number of chunks alone.
constexpr int kAddChunksThreads = sizes::kWarp * sizes::kChunkGroups;
constexpr int64_t kAddChunksSharedBytes = kAddChunksThreads * 4;

// to[c] (+)= Σ over chunks of partial[chunk][k][c]. to: `out` for k = 0, `second` for k = 1; no sum if it is
// null. k is blockIdx.y.
template <bool kAccumulate>
__global__ void __launch_bounds__(kAddChunksThreads)
    add_chunks_kernel(float* out, float* second, const float* partial, int64_t chunks, int64_t cols) {
    wait_for_prior_kernels();
    float* const to = blockIdx.y == 0 ? out : second;
    if (!to) return;
    constexpr int kGroups = sizes::kChunkGroups, kAhead = sizes::kChunksAhead;
    const auto sums = shared_memory<float>(0, kAddChunksThreads);
    const int64_t col = int64_t{blockIdx.x} * sizes::kWarp + lane_index(), stride = gridDim.y * cols;
    if (col < cols) {
        const float* const from = partial + blockIdx.y * cols + col;
        float sum = 0.0f;
#pragma unroll 1
        for (int64_t first = warp_index(); first < chunks; first += kGroups * kAhead) {
            float loaded[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                const int64_t chunk = first + j * kGroups;
                loaded[j] = chunk < chunks ? from[chunk * stride] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < kAhead; ++j) sum += loaded[j];
        }
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    if (warp_index() > 0 || col >= cols) return;
    float sum = sums[lane_index()];
#pragma unroll
    for (int group = 1; group < kGroups; ++group) sum += sums[group * sizes::kWarp + lane_index()];
    to[col] = kAccumulate ? to[col] + sum : sum;
}

// sums: sums per chunk in `partial`, 1 or 2; `second` may be null in either case.
inline void add_chunks(float* out, float* second, const float* partial, int64_t chunks, unsigned sums,
                       int64_t cols, bool accumulate, LaunchSite site) {
    launch(accumulate ? add_chunks_kernel<true> : add_chunks_kernel<false>,
           dim3(grid_of(cols, sizes::kWarp), sums), kAddChunksThreads, kAddChunksSharedBytes, site, out,
           second, partial, chunks, cols);
}

}  // namespace speedrun
