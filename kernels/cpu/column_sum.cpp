#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"

namespace speedrun {

void CpuOps::enqueue(const op::ColumnSum& a, Stream& stream) {
    const int64_t rows = a.x.rows(), cols = a.x.cols();
    auto* partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * cols * sizeof(float)));
    cpu::submit(stream, "column_sum", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                const auto [begin, end] = cpu::chunk_of(rows, chunk, cpu::kReductionChunks);
                cpu::sum_rows(partial + chunk * cols, a.x.as<Real>() + begin * a.x.row_stride, a.x.row_stride,
                              end - begin, cols, [](cpu::Vec v) { return v; });
            });
        });
        cpu::add_chunks(a.out.as<float>(), partial, cols, cols, a.accumulate);
    });
}

}  // namespace speedrun
