#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

cpu::Vec logistic(cpu::Vec x) {
    return 1.0f / (1.0f + cpu::exp(-1.0f * x));
}

}  // namespace

void CpuOps::enqueue(const op::SiluProductForward& a, Stream& stream) {
    cpu::submit(stream, "silu_product_forward", [=] {
        cpu::with_real(a.y.dtype, [&]<class Real>() {
            cpu::parallel_for(a.y.rows(), [&](int64_t t) {
                const Real* gate = a.gate.as<Real>() + t * a.gate.row_stride;
                const Real* x = a.x.as<Real>() + t * a.x.row_stride;
                Real* y = a.y.as<Real>() + t * a.y.row_stride;
                cpu::for_vectors(a.y.cols(), [&](int64_t i, auto width) {
                    const cpu::Vec g = cpu::load(gate + i, width);
                    cpu::store(y + i, g * logistic(g) * cpu::load(x + i, width), width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::SiluProductBackward& a, Stream& stream) {
    cpu::submit(stream, "silu_product_backward", [=] {
        cpu::with_real(a.dy.dtype, [&]<class Real>() {
            cpu::parallel_for(a.dy.rows(), [&](int64_t t) {
                const Real* upstream = a.dy.as<Real>() + t * a.dy.row_stride;
                const Real* gate = a.gate.as<Real>() + t * a.gate.row_stride;
                const Real* x = a.x.as<Real>() + t * a.x.row_stride;
                Real* dgate = a.dgate.as<Real>() + t * a.dgate.row_stride;
                Real* dx = a.dx.as<Real>() + t * a.dx.row_stride;
                cpu::for_vectors(a.dy.cols(), [&](int64_t i, auto width) {
                    const cpu::Vec dy = cpu::load(upstream + i, width), g = cpu::load(gate + i, width),
                                   s = logistic(g), slope = s * fma(g, 1.0f - s, 1.0f);
                    cpu::store(dgate + i, dy * cpu::load(x + i, width) * slope, width);
                    cpu::store(dx + i, dy * (g * s), width);
                });
            });
        });
    });
}

}  // namespace speedrun
