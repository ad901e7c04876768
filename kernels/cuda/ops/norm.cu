// Launchers of the norms: select a kernel of norm.cuh by shape.
#include "kernels/cuda/ops/norm.cuh"

#include <algorithm>

#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace norm_cu {
namespace {

using namespace norm;

template <bool kMixed, class Real>
void launch_forward(const ForwardArguments<Real>& a, bool aligned, LaunchSite site) {
    if (a.rows == 0) return;
    constexpr int kWide = kVectorWidth<Real>;
    auto* kernel = norm_forward_kernel<Real, 1, 0, kMixed>;
    if (aligned) {
        kernel = a.cols <= 768    ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(768), kMixed>
                 : a.cols <= 1024 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(1024), kMixed>
                 : a.cols <= 2048 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(2048), kMixed>
                                  : norm_forward_kernel<Real, kWide, 0, kMixed>;
    }
    launch(kernel, grid_of(a.rows, kRowsOfBlock), sizes::kRowThreads, 0, site, a);
}

template <bool kMixed, class Real>
void launch_backward(const BackwardArguments<Real>& a, bool aligned, unsigned blocks, LaunchSite site) {
    constexpr int kWide = kVectorWidth<Real>;
    auto* kernel = norm_backward_kernel<Real, 1, 0, kMixed>;
    if (aligned) {
        kernel = a.cols <= 768    ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(768), kMixed>
                 : a.cols <= 1024 ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(1024), kMixed>
                                  : norm_backward_kernel<Real, kWide, 0, kMixed>;
    }
    launch(kernel, blocks, sizes::kRowThreads, kMixed ? kReduceSharedBytes : 0, site, a);
}

}  // namespace
}  // namespace norm_cu

void CudaOps::enqueue(const op::NormForward& a, Stream& stream) {
    using namespace norm_cu;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        launch_forward<false>(forward_arguments<Real>(a, a.sum),
                              aligned_rows(kVectorWidth<Real>, {a.y, a.sum, a.x, a.delta, a.gain, a.bias}),
                              stream);
    });
}

void CudaOps::enqueue(const op::MixNormForward& a, Stream& stream) {
    using namespace norm_cu;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        auto arguments = forward_arguments<Real>(a, a.entered);
        arguments.mixed = Rows<Real>(a.sum);
        arguments.z = Rows<Real>(a.mix.z);
        arguments.coefficients = a.mix.coefficients.as<float>();
        launch_forward<true>(
            arguments,
            aligned_rows(kVectorWidth<Real>, {a.y, a.sum, a.entered, a.x, a.delta, a.mix.z, a.gain, a.bias}),
            stream);
    });
}

void CudaOps::enqueue(const op::NormBackward& a, Stream& stream) {
    using namespace norm_cu;
    norm_parameters(a.dgain, a.dbias, a.dy, a.s, a.mean, a.rstd, a.accumulate, a.kind,
                    stream);  // before ds, which may alias dy
    if (a.s.rows() == 0) return;
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        launch_backward<false>(backward_arguments<Real>(a, a.ds),
                               aligned_rows(kVectorWidth<Real>, {a.ds, a.dy, a.s, a.dresidual, a.gain}),
                               grid_of(a.s.rows(), kRowsOfBlock), stream);
    });
}

void CudaOps::enqueue(const op::MixNormBackward& a, Stream& stream) {
    using namespace norm_cu;
    norm_parameters(a.dgain, a.dbias, a.dy, a.s, a.mean, a.rstd, a.accumulate, a.kind,
                    stream);  // before dx, which may alias dy
    const int64_t blocks =
        std::clamp<int64_t>((a.s.rows() + kRowsOfBlock - 1) / kRowsOfBlock, 1, sizes::kReduceMaxBlocks);
    auto* const partial = static_cast<float*>(workspace(stream, blocks * 2 * int64_t{sizeof(float)}));
    cuda::with_real(a.s.dtype, [&]<class Real>() {
        auto arguments = backward_arguments<Real>(a, a.dx);
        arguments.dz = Rows<Real>(a.dz);
        arguments.entered = Rows<Real>(a.entered);
        arguments.z = Rows<Real>(a.mix.z);
        arguments.coefficients = a.mix.coefficients.as<float>();
        arguments.partial = partial;
        arguments.accumulate_z = a.accumulate_z;
        launch_backward<true>(arguments,
                              aligned_rows(kVectorWidth<Real>,
                                           {a.dx, a.dz, a.dy, a.s, a.entered, a.mix.z, a.dresidual, a.gain}),
                              static_cast<unsigned>(blocks), stream);
    });
    launch(finish_kernel<2>, 1, sizes::kReduceThreads, kReduceSharedBytes, stream,
           a.dcoefficients.as<float>(), partial, blocks, a.accumulate);
}

void CudaOps::norm_parameters(Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                              bool accumulate, NormKind kind, Stream& stream) {
    using namespace norm_cu;
    if (!dgain.present() && !dbias.present()) return;
    const int64_t rows = s.rows(), cols = s.cols(), chunks = column_chunks(rows);
    auto* const partial = static_cast<float*>(workspace(stream, chunks * 2 * cols * int64_t{sizeof(float)}));
    cuda::with_real(s.dtype, [&]<class Real>() {
        const dim3 grid(grid_of(cols, sizes::kColumnThreads), static_cast<unsigned>(chunks));
        launch(norm_parameters_kernel<Real>, grid, sizes::kColumnThreads, 0, stream, partial, Rows<Real>(dy),
               Rows<Real>(s), optional(mean), optional(rstd), rows, cols, kind == NormKind::layernorm);
    });
    add_chunks(optional(dgain), optional(dbias), partial, chunks, 2, cols, accumulate, stream);
}

}  // namespace speedrun
