// Launchers of the norms: select a kernel of norm.cuh by shape.
#include "kernels/cuda/ops/norm.cuh"

#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

void CudaOps::enqueue(const op::NormForward& a, Stream& stream) {
    using namespace norm;
    if (a.amax.present()) enqueue(op::Fill{.x = a.amax, .value = 0}, stream);
    if (a.x.rows() == 0) return;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const int64_t cols = a.x.cols();
        auto* kernel = norm_forward_kernel<Real, 1, 0>;
        if (aligned_rows(kWide, {a.y, a.sum, a.x, a.delta, a.gain, a.bias})) {
            kernel = cols <= 768    ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(768)>
                     : cols <= 1024 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(1024)>
                     : cols <= 2048 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(2048)>
                                    : norm_forward_kernel<Real, kWide, 0>;
        }
        launch(kernel, grid_of(a.x.rows(), kRowsOfBlock), sizes::kRowThreads, 0, stream,
               forward_arguments<Real>(a));
    });
}

void CudaOps::enqueue(const op::NormBackward& a, Stream& stream) {
    using namespace norm;
    norm_parameters(a, stream);  // before ds, which may alias dy
    if (a.s.rows() == 0) return;
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const int64_t cols = a.s.cols();
        auto* kernel = norm_backward_kernel<Real, 1, 0>;
        if (aligned_rows(kWide, {a.ds, a.dy, a.s, a.dresidual, a.gain})) {
            kernel = cols <= 768    ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(768)>
                     : cols <= 1024 ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(1024)>
                                    : norm_backward_kernel<Real, kWide, 0>;
        }
        launch(kernel, grid_of(a.s.rows(), kRowsOfBlock), sizes::kRowThreads, 0, stream,
               backward_arguments<Real>(a));
    });
}

void CudaOps::norm_parameters(const op::NormBackward& a, Stream& stream) {
    using namespace norm;
    if (!a.dgain.present() && !a.dbias.present()) return;
    const int64_t rows = a.s.rows(), cols = a.s.cols(), chunks = column_chunks(rows);
    auto* const partial = static_cast<float*>(workspace(stream, chunks * 2 * cols * int64_t{sizeof(float)}));
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        const dim3 grid(grid_of(cols, sizes::kColumnThreads), static_cast<unsigned>(chunks));
        launch(norm_parameters_kernel<Real>, grid, sizes::kColumnThreads, 0, stream, partial,
               Rows<Real>(a.dy), Rows<Real>(a.s), optional(a.mean), optional(a.rstd), rows, cols,
               a.kind == NormKind::layernorm);
    });
    add_chunks(optional(a.dgain), optional(a.dbias), partial, chunks, 2, cols, a.accumulate, stream);
}

}  // namespace speedrun
