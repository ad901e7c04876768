#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::add(Tensor y, Tensor x, Tensor z, Stream& stream) {
    expect(y, x.dtype, {x.rows(), x.cols()}, "add y");
    expect(z, x.dtype, {x.rows(), x.cols()}, "add z");
    cpu::submit(stream, "add", [=] {
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(x.rows(), [&](int64_t t) {
                const Real* a = x.as<Real>() + t * x.row_stride;
                const Real* b = z.as<Real>() + t * z.row_stride;
                Real* out = y.as<Real>() + t * y.row_stride;
                cpu::for_vectors(x.cols(), [&](int64_t i, auto width) {
                    cpu::store(out + i, cpu::load(a + i, width) + cpu::load(b + i, width), width);
                });
            });
        });
    });
}

void CpuOps::mix_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dy, Tensor x, Tensor z,
                          Tensor coefficients, bool accumulate, bool accumulate_z, Stream& stream) {
    for (const Tensor& tensor : {dx, dz, dy, z})
        expect(tensor, x.dtype, {x.rows(), x.cols()}, "mix gradient");
    expect(coefficients, DType::f32, {2}, "mix coefficients");
    expect(dcoefficients, DType::f32, {2}, "mix dcoefficients");
    auto* partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * 2 * sizeof(float)));
    cpu::submit(stream, "mix_backward", [=] {
        const float cx = coefficients.as<float>()[0], cz = coefficients.as<float>()[1];
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                Vec sum_x{}, sum_z{};
                const auto [begin, end] = cpu::chunk_of(x.rows(), chunk, cpu::kReductionChunks);
                for (int64_t t = begin; t < end; ++t) {
                    const Real* a = x.as<Real>() + t * x.row_stride;
                    const Real* b = z.as<Real>() + t * z.row_stride;
                    const Real* upstream = dy.as<Real>() + t * dy.row_stride;
                    Real* da = dx.as<Real>() + t * dx.row_stride;
                    Real* db = dz.as<Real>() + t * dz.row_stride;
                    cpu::for_vectors(x.cols(), [&](int64_t i, auto width) {
                        const Vec g = cpu::load(upstream + i, width);
                        sum_x = fma(g, cpu::load(a + i, width), sum_x);
                        sum_z = fma(g, cpu::load(b + i, width), sum_z);
                        cpu::store(db + i, accumulate_z ? cz * g + cpu::load(db + i, width) : cz * g, width);
                        cpu::store(da + i, cx * g, width);
                    });
                }
                partial[2 * chunk] = cpu::sum(sum_x);
                partial[2 * chunk + 1] = cpu::sum(sum_z);
            });
        });
        cpu::add_chunks(dcoefficients.as<float>(), partial, 2, 2, accumulate);
    });
}

}  // namespace speedrun
