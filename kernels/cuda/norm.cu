// Launchers of the norms: which kernel of norm.cuh for which shape.
#include "kernels/cuda/norm.cuh"

#include <algorithm>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

using namespace norm;

float* optional(Tensor tensor) {
    return tensor.present() ? tensor.as<float>() : nullptr;
}

template <int W>
constexpr int kept_chunks(int columns) {  // of a lane, for rows of this many columns
    return columns / (tiles::kWarp * W);
}

template <bool kMixed, class Real>
void launch_forward(const ForwardArguments<Real>& a, bool aligned, LaunchSite site) {
    if (a.rows == 0) return;
    constexpr int kWide = kVectorWidth<Real>;
    auto* kernel = norm_forward_kernel<Real, 1, 0, kMixed>;
    if (aligned) {
        kernel = a.cols <= 1024   ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(1024), kMixed>
                 : a.cols <= 2048 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(2048), kMixed>
                                  : norm_forward_kernel<Real, kWide, 0, kMixed>;
    }
    launch(kernel, grid_of(a.rows, kRowsOfBlock), tiles::kRowThreads, 0, site, a);
}

template <bool kMixed, class Real>
void launch_backward(const BackwardArguments<Real>& a, bool aligned, unsigned blocks, LaunchSite site) {
    constexpr int kWide = kVectorWidth<Real>;
    auto* kernel = norm_backward_kernel<Real, 1, 0, kMixed>;
    if (aligned) {
        kernel = a.cols <= 1024 ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(1024), kMixed>
                                : norm_backward_kernel<Real, kWide, 0, kMixed>;
    }
    launch(kernel, blocks, tiles::kRowThreads, kMixed ? kReduceSharedBytes : 0, site, a);
}

template <class Real>
ForwardArguments<Real> forward_arguments(Tensor y, Tensor entered, Tensor mean, Tensor rstd, Tensor x,
                                         Tensor delta, Tensor gain, Tensor bias, NormKind kind) {
    return {Rows<Real>(y),
            Rows<Real>(entered),
            Rows<Real>(x),
            Rows<Real>(delta),
            optional(mean),
            optional(rstd),
            optional(gain),
            optional(bias),
            x.rows(),
            x.cols(),
            delta.present(),
            kind == NormKind::layernorm,
            {},
            {},
            nullptr};
}

template <class Real>
BackwardArguments<Real> backward_arguments(Tensor dx, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                                           Tensor gain, Tensor dresidual, NormKind kind) {
    return {Rows<Real>(dx),
            Rows<Real>(dy),
            Rows<Real>(s),
            Rows<Real>(dresidual),
            optional(mean),
            optional(rstd),
            optional(gain),
            s.rows(),
            s.cols(),
            dresidual.present(),
            kind == NormKind::layernorm,
            {},
            {},
            {},
            nullptr,
            nullptr,
            false};
}

}  // namespace

void CudaOps::norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta,
                           Tensor gain, Tensor bias, NormKind kind, Stream& stream) {
    check_norm_forward(y, sum, mean, rstd, x, delta, gain, bias, kind);
    cuda::with_real(x.dtype, [&]<class Real>() {
        launch_forward<false>(forward_arguments<Real>(y, sum, mean, rstd, x, delta, gain, bias, kind),
                              aligned_rows(kVectorWidth<Real>, {y, sum, x, delta, gain, bias}), stream);
    });
}

void CudaOps::mix_norm_forward(Tensor y, Tensor sum, Tensor entered, Tensor mean, Tensor rstd, Tensor x,
                               Tensor delta, const MixWith& mix, Tensor gain, Tensor bias, NormKind kind,
                               Stream& stream) {
    check_mix_norm_forward(y, sum, entered, mean, rstd, x, delta, mix, gain, bias, kind);
    cuda::with_real(x.dtype, [&]<class Real>() {
        auto arguments = forward_arguments<Real>(y, entered, mean, rstd, x, delta, gain, bias, kind);
        arguments.mixed = Rows<Real>(sum);
        arguments.z = Rows<Real>(mix.z);
        arguments.coefficients = mix.coefficients.as<float>();
        launch_forward<true>(arguments,
                             aligned_rows(kVectorWidth<Real>, {y, sum, entered, x, delta, mix.z, gain, bias}),
                             stream);
    });
}

void CudaOps::norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean,
                            Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate, NormKind kind,
                            Stream& stream) {
    check_norm_backward(ds, dgain, dbias, dy, s, mean, rstd, gain, dresidual, kind);
    norm_parameters(dgain, dbias, dy, s, mean, rstd, accumulate, kind,
                    stream);  // before ds, which may alias dy
    if (s.rows() == 0) return;
    cuda::with_real(s.dtype, [&]<class Real>() {
        launch_backward<false>(backward_arguments<Real>(ds, dy, s, mean, rstd, gain, dresidual, kind),
                               aligned_rows(kVectorWidth<Real>, {ds, dy, s, dresidual, gain}),
                               grid_of(s.rows(), kRowsOfBlock), stream);
    });
}

void CudaOps::mix_norm_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dgain, Tensor dbias,
                                Tensor dy, Tensor s, Tensor entered, const MixWith& mix, Tensor mean,
                                Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate,
                                bool accumulate_z, NormKind kind, Stream& stream) {
    check_mix_norm_backward(dx, dz, dcoefficients, dgain, dbias, dy, s, entered, mix, mean, rstd, gain,
                            dresidual, kind);
    norm_parameters(dgain, dbias, dy, s, mean, rstd, accumulate, kind,
                    stream);  // before dx, which may alias dy
    const int64_t blocks =
        std::clamp<int64_t>((s.rows() + kRowsOfBlock - 1) / kRowsOfBlock, 1, tiles::kReduceMaxBlocks);
    auto* const partial = static_cast<float*>(workspace(stream, blocks * 2 * int64_t{sizeof(float)}));
    cuda::with_real(s.dtype, [&]<class Real>() {
        auto arguments = backward_arguments<Real>(dx, dy, s, mean, rstd, gain, dresidual, kind);
        arguments.dz = Rows<Real>(dz);
        arguments.entered = Rows<Real>(entered);
        arguments.z = Rows<Real>(mix.z);
        arguments.coefficients = mix.coefficients.as<float>();
        arguments.partial = partial;
        arguments.accumulate_z = accumulate_z;
        launch_backward<true>(
            arguments, aligned_rows(kVectorWidth<Real>, {dx, dz, dy, s, entered, mix.z, dresidual, gain}),
            static_cast<unsigned>(blocks), stream);
    });
    launch(finish_kernel<2>, 1, tiles::kReduceThreads, kReduceSharedBytes, stream, dcoefficients.as<float>(),
           partial, blocks, accumulate);
}

void CudaOps::norm_parameters(Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                              bool accumulate, NormKind kind, Stream& stream) {
    if (!dgain.present() && !dbias.present()) return;
    const int64_t rows = s.rows(), cols = s.cols(), chunks = column_chunks(rows);
    auto* const partial = static_cast<float*>(workspace(stream, chunks * 2 * cols * int64_t{sizeof(float)}));
    cuda::with_real(s.dtype, [&]<class Real>() {
        const dim3 grid(grid_of(cols, tiles::kColumnThreads), static_cast<unsigned>(chunks));
        launch(norm_parameters_kernel<Real>, grid, tiles::kColumnThreads, 0, stream, partial, Rows<Real>(dy),
               Rows<Real>(s), optional(mean), optional(rstd), rows, cols, kind == NormKind::layernorm);
    });
    add_chunks(optional(dgain), optional(dbias), partial, chunks, 2, cols, accumulate, stream);
}

}  // namespace speedrun
