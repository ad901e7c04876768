// Norms of weighted sums, as the two operations that they stand for: products take nearly all of a CPU's step, and what a
// row needs of either would have to be said again.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_checks.h"

namespace speedrun {

void CpuOps::sum_norm_forward(const op::SumNormForward& a, Stream& stream) {
    check(a);
    weighted_sum_forward(a.first(), stream);
    norm_forward(a.second(), stream);
}

void CpuOps::sum_norm_backward(const op::SumNormBackward& a, Stream& stream) {
    check(a);
    Tensor ds = a.dy;
    ds.row_stride = ds.cols();
    ds.data = workspace(between_[&stream], stream, ds.bytes());
    norm_backward(a.first(ds), stream);
    weighted_sum_backward(a.second(ds), stream);
}

}  // namespace speedrun
