// Attention with f32 multiply-adds, for any element type and head sizes up to 128. Tiles of 32 rows of the
// other side are stored as f32 in shared memory. A warp owns 4 rows, processed one by one. Its lanes are the
// rows of the other side in the first matmuls, and the columns of the head in the second.
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/ops/attention.cuh"

namespace speedrun::attention {

constexpr int kPortableRows = 32, kPortableThreads = 256, kPortableWarps = kPortableThreads / 32;
constexpr int kRowsOfWarp = kPortableRows / kPortableWarps, kSlices = kMaxHeadDim / 32;

// Rows begin … begin + kPortableRows of one head as f32. The pitch is one element more than the width, so
// that lanes that read one column of 32 rows use different banks. Zero from row `end` on.
template <class Real>
__device__ inline void load_rows(float* tile, const Real* head, int64_t stride, int begin, int end,
                                 int width) {
    for (int index = static_cast<int>(threadIdx.x); index < kPortableRows * width;
         index += kPortableThreads) {
        const int row = index / width, d = index % width;
        const bool valid = begin + row < end;
        tile[row * (width + 1) + d] = valid ? to_float(head[(begin + row) * stride + d]) : 0.0f;
    }
}

__device__ inline float dot(const float* x, const float* y, int count) {
    float sum = 0.0f;
    for (int d = 0; d < count; ++d) sum = fmaf(x[d], y[d], sum);
    return sum;
}

// sums[lane's columns] += Σ_j weights[j] · rows[j]; `weights` were written by this warp's lanes.
__device__ inline void add_weighted_rows(float (&sums)[kSlices], const float* weights, const float* rows,
                                         int width) {
    for (int j = 0; j < kPortableRows; ++j) {
        const float weight = weights[j];
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
            const int d = 32 * slice + ptx::lane_id();
            if (d < width) sums[slice] = fmaf(weight, rows[j * (width + 1) + d], sums[slice]);
        }
    }
}

template <class Real>
__device__ inline void store_row(Real* row, const float (&sums)[kSlices], float factor, int width) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
        const int d = 32 * slice + ptx::lane_id();
        if (d < width) row[d] = from_float<Real>(sums[slice] * factor);
    }
}

template <class Real, bool kPlaced>
__global__ void __launch_bounds__(kPortableThreads)
    attention_forward_kernel(View<Real> o, float* lse, View<const Real> q, View<const Real> k,
                             View<const Real> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    const int tile_floats = kPortableRows * (p.head_dim + 1), lane = ptx::lane_id();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float* weights = shared_memory<float>(warp * 32 * 4);
    float* queries = shared_memory<float>(kPortableWarps * 32 * 4);
    float* keys = queries + tile_floats;
    float* values = keys + tile_floats;
    const Where w = where_of_queries(p, kPortableRows);
    const int begin = w.tile * kPortableRows,
              end = kPlaced ? p.key_end(w.first, min(begin + kPortableRows, p.queries()))
                            : min(begin + kPortableRows, p.length);
    const int first = low_range<kPortableRows>(p, w.first, begin).lowest / kPortableRows * kPortableRows;
    load_rows(queries, q.head(w.first.query, w.column), q.stride, begin, p.queries(), p.head_dim);

    float sums[kRowsOfWarp][kSlices] = {}, maximum[kRowsOfWarp], total[kRowsOfWarp] = {};
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) maximum[r] = -INFINITY;
    for (int j0 = first; j0 < end; j0 += kPortableRows) {
        __syncthreads();  // the previous tiles are no longer read
        load_rows(keys, k.head(w.first.key, w.column), k.stride, j0, p.length, p.head_dim);
        load_rows(values, v.head(w.first.key, w.head * p.value_dim), v.stride, j0, p.length, p.value_dim);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r) {
            const int own = begin + warp * kRowsOfWarp + r, key = j0 + lane;
            if (own >= p.queries()) break;
            const bool visible = key <= (kPlaced ? p.place(w.first, own) : own) && key >= p.low(w.first, own);
            const float score = p.scale * dot(queries + (own - begin) * (p.head_dim + 1),
                                              keys + lane * (p.head_dim + 1), p.head_dim);
            const float raised = fmaxf(maximum[r], warp_max(visible ? score : -INFINITY));
            if (raised == -INFINITY) continue;  // no visible key yet
            const float factor = expf(maximum[r] - raised), weight = visible ? expf(score - raised) : 0.0f;
            maximum[r] = raised;
            total[r] = fmaf(total[r], factor, warp_sum(weight));
#pragma unroll
            for (float& sum : sums[r]) sum *= factor;
            weights[lane] = weight;
            __syncwarp();
            add_weighted_rows(sums[r], weights, values, p.value_dim);
            __syncwarp();
        }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int own = begin + warp * kRowsOfWarp + r;
        if (own >= p.queries()) break;
        const float inverse = kPlaced && total[r] == 0.0f ? 0.0f : 1.0f / total[r];  // 0: no visible key
        store_row(o.head(w.first.query + own, w.head * p.value_dim), sums[r], inverse, p.value_dim);
        if (lane == 0) lse[w.head * p.rows + w.first.query + own] = maximum[r] + logf(total[r]);
    }
}

template <class Real, bool kPlaced>
__global__ void __launch_bounds__(kPortableThreads)
    attention_backward_keys_kernel(View<Real> dk, View<Real> dv, View<const Real> dout, const float* lse,
                                   const float* delta, const int32_t* group_low, View<const Real> q,
                                   View<const Real> k, View<const Real> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    const int tile_floats = kPortableRows * (p.head_dim + 1), lane = ptx::lane_id();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float* weights = shared_memory<float>(warp * 64 * 4);
    float* gradients = weights + 32;
    float* keys = shared_memory<float>(kPortableWarps * 64 * 4);
    float* queries = keys + tile_floats;
    float* values = queries + tile_floats;
    float* upstream = values + kPortableRows * (p.value_dim + 1);
    const Where w = where_of_keys(p);
    const int begin = w.tile * kPortableRows, key_end = min(begin + kPortableRows, p.length);
    const int first = kPlaced ? p.first_query(w.first, begin) : begin;
    const int end = query_end(p, group_low, w, first, key_end);
    load_rows(keys, k.head(w.first.key, w.column), k.stride, begin, p.length, p.head_dim);
    load_rows(values, v.head(w.first.key, w.head * p.value_dim), v.stride, begin, p.length, p.value_dim);

    float key_sums[kRowsOfWarp][kSlices] = {}, value_sums[kRowsOfWarp][kSlices] = {};
    for (int i0 = first; i0 < end; i0 += kPortableRows) {
        __syncthreads();
        load_rows(queries, q.head(w.first.query, w.column), q.stride, i0, p.queries(), p.head_dim);
        load_rows(upstream, dout.head(w.first.query, w.head * p.value_dim), dout.stride, i0, p.queries(),
                  p.value_dim);
        __syncthreads();
        const int query = i0 + lane;
        const bool valid = query < p.queries();
        const int64_t statistics = w.head * p.rows + w.first.query + query;
        const float query_lse = valid ? lse[statistics] : 0.0f,
                    query_delta = valid ? delta[statistics] : 0.0f;
        const int low = valid ? p.low(w.first, query) : p.length;
        const int place = !kPlaced ? query : valid ? p.place(w.first, query) : -1;
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r) {
            const int own = begin + warp * kRowsOfWarp + r, row = own - begin;
            if (own >= p.length) break;
            const bool visible = own <= place && own >= low;
            const float score =
                dot(keys + row * (p.head_dim + 1), queries + lane * (p.head_dim + 1), p.head_dim);
            const float product =
                dot(values + row * (p.value_dim + 1), upstream + lane * (p.value_dim + 1), p.value_dim);
            const float weight = visible ? expf(fmaf(p.scale, score, -query_lse)) : 0.0f;
            weights[lane] = weight;
            gradients[lane] = weight * (product - query_delta);
            __syncwarp();
            add_weighted_rows(value_sums[r], weights, upstream, p.value_dim);
            add_weighted_rows(key_sums[r], gradients, queries, p.head_dim);
            __syncwarp();
        }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int own = begin + warp * kRowsOfWarp + r;
        if (own >= p.length) break;
        store_row(dk.head(w.first.key + own, w.column), key_sums[r], p.scale, p.head_dim);
        store_row(dv.head(w.first.key + own, w.head * p.value_dim), value_sums[r], 1.0f, p.value_dim);
    }
}

template <class Real, bool kPlaced>
__global__ void __launch_bounds__(kPortableThreads)
    attention_backward_queries_kernel(View<Real> dq, View<const Real> dout, const float* lse,
                                      const float* delta, View<const Real> q, View<const Real> k,
                                      View<const Real> v, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    const int tile_floats = kPortableRows * (p.head_dim + 1), lane = ptx::lane_id();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float* gradients = shared_memory<float>(warp * 32 * 4);
    float* queries = shared_memory<float>(kPortableWarps * 32 * 4);
    float* keys = queries + tile_floats;
    float* upstream = keys + tile_floats;
    float* values = upstream + kPortableRows * (p.value_dim + 1);
    const Where w = where_of_queries(p, kPortableRows);
    const int begin = w.tile * kPortableRows,
              end = kPlaced ? p.key_end(w.first, min(begin + kPortableRows, p.queries()))
                            : min(begin + kPortableRows, p.length);
    const int first = low_range<kPortableRows>(p, w.first, begin).lowest / kPortableRows * kPortableRows;
    load_rows(queries, q.head(w.first.query, w.column), q.stride, begin, p.queries(), p.head_dim);
    load_rows(upstream, dout.head(w.first.query, w.head * p.value_dim), dout.stride, begin, p.queries(),
              p.value_dim);

    float sums[kRowsOfWarp][kSlices] = {};
    for (int j0 = first; j0 < end; j0 += kPortableRows) {
        __syncthreads();
        load_rows(keys, k.head(w.first.key, w.column), k.stride, j0, p.length, p.head_dim);
        load_rows(values, v.head(w.first.key, w.head * p.value_dim), v.stride, j0, p.length, p.value_dim);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r) {
            const int own = begin + warp * kRowsOfWarp + r, key = j0 + lane, row = own - begin;
            if (own >= p.queries()) break;
            const int64_t statistics = w.head * p.rows + w.first.query + own;
            const bool visible = key <= (kPlaced ? p.place(w.first, own) : own) && key >= p.low(w.first, own);
            const float score =
                dot(queries + row * (p.head_dim + 1), keys + lane * (p.head_dim + 1), p.head_dim);
            const float product =
                dot(upstream + row * (p.value_dim + 1), values + lane * (p.value_dim + 1), p.value_dim);
            const float weight = visible ? expf(fmaf(p.scale, score, -lse[statistics])) : 0.0f;
            gradients[lane] = weight * (product - delta[statistics]);
            __syncwarp();
            add_weighted_rows(sums[r], gradients, keys, p.head_dim);
            __syncwarp();
        }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int own = begin + warp * kRowsOfWarp + r;
        if (own >= p.queries()) break;
        store_row(dq.head(w.first.query + own, w.column), sums[r], p.scale, p.head_dim);
    }
}

}  // namespace speedrun::attention
