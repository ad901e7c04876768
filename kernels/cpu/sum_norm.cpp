// Norms of weighted sums, as separate operations: matmuls dominate a CPU's step, so a fused kernel would not pay
// for its duplicated row code.
#include "kernels/cpu/cpu_ops.h"

namespace speedrun {

void CpuOps::enqueue(const op::SumNormForward& a, Stream& stream) {
    if (a.delta.present()) enqueue(a.before(), stream);
    enqueue(a.first(), stream);
    enqueue(a.second(), stream);
}

void CpuOps::enqueue(const op::SumNormBackward& a, Stream& stream) {
    Tensor ds = a.dsum;
    if (!ds.present()) {
        ds = a.dy;
        ds.row_stride = ds.cols();
        ds.data = workspace(between_[&stream], stream, ds.bytes());
    }
    enqueue(a.first(ds), stream);
    enqueue(a.second(ds), stream);
}

}  // namespace speedrun
