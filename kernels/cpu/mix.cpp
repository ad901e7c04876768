#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::add(const op::Add& a, Stream& stream) {
    expect(a.y, a.x.dtype, {a.x.rows(), a.x.cols()}, "add y");
    expect(a.z, a.x.dtype, {a.x.rows(), a.x.cols()}, "add z");
    cpu::submit(stream, "add", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::parallel_for(a.x.rows(), [&](int64_t t) {
                const Real* left = a.x.as<Real>() + t * a.x.row_stride;
                const Real* right = a.z.as<Real>() + t * a.z.row_stride;
                Real* out = a.y.as<Real>() + t * a.y.row_stride;
                cpu::for_vectors(a.x.cols(), [&](int64_t i, auto width) {
                    cpu::store(out + i, cpu::load(left + i, width) + cpu::load(right + i, width), width);
                });
            });
        });
    });
}

void CpuOps::mix_backward(const op::MixBackward& a, Stream& stream) {
    for (const Tensor& tensor : {a.dx, a.dz, a.dy, a.z})
        expect(tensor, a.x.dtype, {a.x.rows(), a.x.cols()}, "mix gradient");
    expect(a.coefficients, DType::f32, {2}, "mix coefficients");
    expect(a.dcoefficients, DType::f32, {2}, "mix dcoefficients");
    auto* partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * 2 * sizeof(float)));
    cpu::submit(stream, "mix_backward", [=] {
        const float cx = a.coefficients.as<float>()[0], cz = a.coefficients.as<float>()[1];
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                Vec sum_x{}, sum_z{};
                const auto [begin, end] = cpu::chunk_of(a.x.rows(), chunk, cpu::kReductionChunks);
                for (int64_t t = begin; t < end; ++t) {
                    const Real* left = a.x.as<Real>() + t * a.x.row_stride;
                    const Real* right = a.z.as<Real>() + t * a.z.row_stride;
                    const Real* upstream = a.dy.as<Real>() + t * a.dy.row_stride;
                    Real* da = a.dx.as<Real>() + t * a.dx.row_stride;
                    Real* db = a.dz.as<Real>() + t * a.dz.row_stride;
                    cpu::for_vectors(a.x.cols(), [&](int64_t i, auto width) {
                        const Vec g = cpu::load(upstream + i, width);
                        sum_x = fma(g, cpu::load(left + i, width), sum_x);
                        sum_z = fma(g, cpu::load(right + i, width), sum_z);
                        cpu::store(db + i, a.accumulate_z ? cz * g + cpu::load(db + i, width) : cz * g,
                                   width);
                        cpu::store(da + i, cx * g, width);
                    });
                }
                partial[2 * chunk] = cpu::sum(sum_x);
                partial[2 * chunk + 1] = cpu::sum(sum_z);
            });
        });
        cpu::add_chunks(a.dcoefficients.as<float>(), partial, 2, 2, a.accumulate);
    });
}

}  // namespace speedrun
