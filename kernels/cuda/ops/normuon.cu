// NorMuon's rescaling of an update: sums of squares of its lines, their factors, and the multiplication.
// Three launches, because the norm of a matrix needs all of its lines.
// Roofline bound of n·R·C elements of b bytes: read twice and written once, 3·n·R·C·b (the second read from
// L2 if they fit); 8·n·L bytes of second moments. Legend: n matrices of R rows, C columns · a line is a row
// or a column (NormuonLines); L lines of a matrix · W elements per thread.
#include <algorithm>

#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace normuon_cu {
namespace {

// sums[row] = Σ squares; one warp per row, over all matrices.
template <int W, class Real>
__global__ void __launch_bounds__(sizes::kRowThreads)
    row_squares_kernel(float* sums, const Real* u, int64_t rows, int64_t cols) {
    wait_for_prior_kernels();
    const int64_t row = int64_t{blockIdx.x} * (sizes::kRowThreads / sizes::kWarp) + warp_index();
    if (row >= rows) return;
    float sum = 0.0f;
    for (int64_t col = lane_index() * W; col < cols; col += sizes::kWarp * W) {
        const int64_t left = cols - col;
        const Vector<W> v = Chunk<W>{left < W ? static_cast<int>(left) : W}.load(u + row * cols + col);
#pragma unroll
        for (int i = 0; i < W; ++i) sum += v[i] * v[i];
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) sums[row] = sum;
}

// partial[matrix][chunk][c] = Σ squares over the rows of the chunk; one thread per W columns.
template <int W, class Real>
__global__ void __launch_bounds__(sizes::kColumnThreads)
    column_squares_kernel(float* partial, const Real* u, int64_t rows, int64_t cols) {
    wait_for_prior_kernels();
    const int64_t col = (int64_t{blockIdx.x} * sizes::kColumnThreads + threadIdx.x) * W, chunk = blockIdx.y,
                  matrix = blockIdx.z;
    if (col >= cols) return;
    const Chunk<W> width{cols - col < W ? static_cast<int>(cols - col) : W};
    const int64_t begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
    Vector<W> sums = {};
#pragma unroll 4
    for (int64_t row = begin; row < end; ++row) {
        const Vector<W> v = width.load(u + (matrix * rows + row) * cols + col);
#pragma unroll
        for (int i = 0; i < W; ++i) sums[i] += v[i] * v[i];
    }
    width.store(partial + (matrix * gridDim.y + chunk) * cols + col, sums);
}

// One block per matrix: adds the chunks' sums, updates v, and stores the factor of each line in factors
// [n][L].
__global__ void __launch_bounds__(sizes::kNormuonThreads)
    normuon_factors_kernel(float* factors, float* second_moment, int64_t moment_stride, const float* partial,
                           const float* grad_scale, int64_t lines, int64_t chunks, float length, float beta2,
                           float epsilon) {
    wait_for_prior_kernels();
    if (!is_finite(*grad_scale)) return;
    const int64_t matrix = blockIdx.x;
    float* const own = factors + matrix * lines;
    float before = 0.0f, after = 0.0f;  // squared norm of the matrix
    for (int64_t line = threadIdx.x; line < lines; line += sizes::kNormuonThreads) {
        float sum = 0.0f;
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
            sum += partial[(matrix * chunks + chunk) * lines + line];
        float* const v = second_moment + matrix * moment_stride + line;
        *v = beta2 * *v + (1.0f - beta2) / length * sum;
        const float factor = 1.0f / (sqrtf(*v) + epsilon);
        own[line] = factor;
        before += sum;
        after += sum * factor * factor;
    }
    before = block_sum(before);
    after = block_sum(after);
    const float common = after > 0.0f ? sqrtf(before / after) : 1.0f;
    for (int64_t line = threadIdx.x; line < lines; line += sizes::kNormuonThreads) own[line] *= common;
}

template <class Real>
struct ScaleLines {
    Real* u;
    const float *factors, *grad_scale;
    int64_t cols;
    unsigned rows;  // rows of a matrix
    bool rowwise;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        if (!is_finite(*grad_scale)) return;
        Vector<W> v = chunk.load(u + row * cols + col), factor;
        if (rowwise) {
#pragma unroll
            for (int i = 0; i < W; ++i) factor[i] = factors[row];
        } else {
            factor = chunk.load(factors + int64_t{static_cast<unsigned>(row) / rows} * cols + col);
        }
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] *= factor[i];
        chunk.store(u + row * cols + col, v);
    }
};

}  // namespace
}  // namespace normuon_cu

void CudaOps::enqueue(const op::NormuonScale& a, Stream& stream) {
    using namespace normuon_cu;
    if (a.update.numel() == 0) return;
    const int64_t matrices = a.update.shape[0], rows = a.update.shape[1], cols = a.update.shape[2];
    if (matrices * rows > 0xffffffffll) {
        throw_internal("normuon_scale: {} has more than 2^32 rows", a.update.describe());
    }
    const bool rowwise = by_row(a.lines, rows, cols);
    const int64_t lines = num_lines(a.lines, rows, cols);
    const int64_t chunks =
        rowwise ? 1 : std::clamp<int64_t>(rows / sizes::kNormuonRows, 1, sizes::kColumnMaxChunks);
    // Factors first: they are read W at a time and must be aligned.
    auto* const factors =
        static_cast<float*>(workspace(stream, (chunks + 1) * matrices * lines * int64_t{sizeof(float)}));
    float* const partial = factors + matrices * lines;
    cuda::with_real(a.update.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        Real* const u = a.update.as<Real>();
        cuda::with_width<Real>(aligned_rows(kWide, {a.update}) && cols % kWide == 0, [&]<int W>() {
            if (rowwise) {
                launch(row_squares_kernel<W, Real>,
                       grid_of(matrices * rows, sizes::kRowThreads / sizes::kWarp), sizes::kRowThreads, 0,
                       stream, partial, u, matrices * rows, cols);
            } else {
                const dim3 grid(grid_of(cols, int64_t{sizes::kColumnThreads} * W),
                                static_cast<unsigned>(chunks), static_cast<unsigned>(matrices));
                launch(column_squares_kernel<W, Real>, grid, sizes::kColumnThreads, 0, stream, partial, u,
                       rows, cols);
            }
            launch(normuon_factors_kernel, static_cast<unsigned>(matrices), sizes::kNormuonThreads,
                   kReduceSharedBytes, stream, factors, a.second_moment.as<float>(),
                   a.second_moment.row_stride, partial, a.grad_scale.as<float>(), lines, chunks,
                   static_cast<float>(rowwise ? cols : rows), a.beta2, a.epsilon);
            map<W>({matrices * rows, cols},
                   ScaleLines<Real>{u, factors, a.grad_scale.as<float>(), cols, static_cast<unsigned>(rows),
                                    rowwise},
                   stream);
        });
    });
}

}  // namespace speedrun
