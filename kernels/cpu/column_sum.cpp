#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"

namespace speedrun {

void CpuOps::column_sum(Tensor out, Tensor x, bool accumulate, Stream& stream) {
    const int64_t rows = x.rows(), cols = x.cols();
    expect(out, DType::f32, {cols}, "column_sum out");
    auto* partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * cols * sizeof(float)));
    cpu::submit(stream, "column_sum", [=] {
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                const auto [begin, end] = cpu::chunk_of(rows, chunk, cpu::kReductionChunks);
                cpu::sum_rows(partial + chunk * cols, x.as<Real>() + begin * x.row_stride, x.row_stride,
                              end - begin, cols, [](cpu::Vec v) { return v; });
            });
        });
        cpu::add_chunks(out.as<float>(), partial, cols, cols, accumulate);
    });
}

}  // namespace speedrun
