// The two matmuls of compose_heads, in f32 on tiles of 32 rows: rows of two tensors (dots), and a map in
// shared memory times rows of a tensor (combine). A thread has two rows by four columns. Operands are staged
// as f32 in shared memory and read 16 bytes at a time.
//
// Legend: W elements per load, 4 or 1 · cols columns of a map, a multiple of kDepth.
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"

namespace speedrun::composed {

constexpr int kTile = 32, kThreads = 256, kSide = 16;  // threads: kSide × kSide
constexpr int kColumns = 64, kDepth = 32;              // tile size per step
constexpr int kPitch = kDepth + 4;  // pitch of staged rows: 16-byte words of 8 lanes use 32 banks
constexpr int kWidePitch = kColumns + 4;
constexpr int kRowsOfWarp = kTile / (kThreads / sizes::kWarp);

// Floats of shared memory, from its start, in which both matmuls stage rows.
constexpr int kStaged = (kTile + kColumns) * kPitch;
static_assert(kDepth * kWidePitch <= kStaged);

__host__ __device__ constexpr int padded(int cols) {
    return (cols + kDepth - 1) / kDepth * kDepth;
}
// Two rows are 8 banks apart.
__host__ __device__ constexpr int pitch_of_map(int cols) {
    return padded(cols) + 4;
}

// Columns of one head in some rows of a tensor.
template <class Real>
struct HeadRows {
    const Real* data;  // first element
    int64_t stride;
    int count, dim;

    HeadRows() = default;
    __device__ HeadRows(const Rows<Real>& x, int64_t first, int rows, int head, int head_dim)
        : data(x.at(first, int64_t{head} * head_dim)), stride(x.stride), count(rows), dim(head_dim) {}
    // Loads four elements; zero outside the rows or columns.
    template <int W>
    __device__ __forceinline__ Vector<4> load(int row, int d) const {
        if constexpr (W == 4) {
            if (row < count && d < dim) return load_vector<4>(data + row * stride + d);
            return Vector<4>{};
        } else {
            Vector<4> result;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                result[i] = row < count && d + i < dim ? to_float(data[row * stride + d + i]) : 0.0f;
            return result;
        }
    }
};

// Stages kRows rows and kCols columns, from row `first` and column d0 on, with this pitch (a multiple of
// four).
template <int W, int kRows, int kCols, class Real>
__device__ __forceinline__ void stage(int64_t offset, int pitch, const HeadRows<Real>& x, int first, int d0) {
    constexpr int kOfRow = kCols / 4;
    const auto staged = shared_memory<float>(offset * 4, int64_t{kRows} * pitch);
#pragma unroll
    for (int item = static_cast<int>(threadIdx.x); item < kRows * kOfRow; item += kThreads) {
        const int row = item / kOfRow, d = item % kOfRow * 4;
        store_vector<4>(&staged[row * pitch + d], x.template load<W>(first + row, d0 + d));
    }
}

// map[r][c] = factor·(row r of x)·(row c of y), or map[c][r] if transposed. The map has this pitch and begins
// `map` floats into shared memory. Called by all threads; a barrier must follow before the map is read.
template <int W, bool kTransposed, class Real>
__device__ inline void dots(int map, int pitch, const HeadRows<Real>& x, const HeadRows<Real>& y, int cols,
                            float factor) {
    const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
    const auto xs = shared_memory<float>(0, kTile * kPitch),
               ys = shared_memory<float>(int64_t{kTile} * kPitch * 4, kColumns * kPitch),
               out = shared_memory<float>(int64_t{map} * 4);
    for (int c0 = 0; c0 < cols; c0 += kColumns) {
        float sums[2][4] = {};
        for (int d0 = 0; d0 < x.dim; d0 += kDepth) {
            __syncthreads();  // earlier staged rows are no longer read
            stage<W, kTile, kDepth>(0, kPitch, x, 0, d0);
            stage<W, kColumns, kDepth>(kTile * kPitch, kPitch, y, c0, d0);
            __syncthreads();
#pragma unroll
            for (int d = 0; d < kDepth; d += 4) {
                Vector<4> a[2], b[4];
#pragma unroll
                for (int r = 0; r < 2; ++r) a[r] = load_vector<4>(&xs[(2 * ty + r) * kPitch + d]);
#pragma unroll
                for (int c = 0; c < 4; ++c) b[c] = load_vector<4>(&ys[(tx + kSide * c) * kPitch + d]);
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(a[r][i], b[c][i], sums[r][c]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int row = 2 * ty + r, col = c0 + tx + kSide * c;
                if (col < cols)
                    out[kTransposed ? col * pitch + row : row * pitch + col] = factor * sums[r][c];
            }
        }
    }
}

// sums = rows 2·ty, 2·ty + 1 and columns d0 + 4·tx … of map·y, for a map written by dots(). Called by all
// threads.
template <int W, bool kTransposed, class Real>
__device__ inline void combine(Vector<4> (&sums)[2], int map, int pitch, const HeadRows<Real>& y, int cols,
                               int d0) {
    const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
    const auto ys = shared_memory<float>(0, kDepth * kWidePitch),
               weights = shared_memory<float>(int64_t{map} * 4);
    sums[0] = sums[1] = Vector<4>{};
    for (int j0 = 0; j0 < cols; j0 += kDepth) {
        __syncthreads();
        stage<W, kDepth, kColumns>(0, kWidePitch, y, j0, d0);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kDepth; j += 4) {
            Vector<4> w[2];  // map values of the two rows
            if constexpr (kTransposed) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const Vector<2> both = load_vector<2>(&weights[(j0 + j + i) * pitch + 2 * ty]);
                    w[0][i] = both[0];
                    w[1][i] = both[1];
                }
            } else {
#pragma unroll
                for (int r = 0; r < 2; ++r) w[r] = load_vector<4>(&weights[(2 * ty + r) * pitch + j0 + j]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Vector<4> b = load_vector<4>(&ys[(j + i) * kWidePitch + 4 * tx]);
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(w[r][i], b[c], sums[r][c]);
            }
        }
    }
}

// Rows of one head that a block writes.
template <class Real>
struct HeadOutput {
    Rows<Real> to;
    int64_t first;
    int count, head, dim;
    bool accumulate;

    // Writes factor·sums to a thread's four columns from d on of a row.
    template <int W>
    __device__ __forceinline__ void put(int row, int d, const Vector<4>& sums, float factor) const {
        if (row >= count || d >= dim) return;
        Real* const p = to.at(first + row, int64_t{head} * dim + d);
        Vector<4> result;
        if constexpr (W == 4) {
            if (accumulate) result = load_vector<4>(p);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                result[i] = accumulate ? fmaf(factor, sums[i], result[i]) : factor * sums[i];
            store_vector<4>(p, result);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (d + i >= dim) break;
                const float value = factor * sums[i];
                p[i] = from_float<Real>(accumulate ? to_float(p[i]) + value : value);
            }
        }
    }
};

}  // namespace speedrun::composed
