#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

void CpuOps::enqueue(const op::Add& a, Stream& stream) {
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

}  // namespace speedrun
