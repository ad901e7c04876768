#include "kernels/ops/matmul.h"

namespace speedrun {

void op::Matmul::check() const {
    if (accumulate && bias.present()) throw_internal("matmul: bias and accumulate exclude each other");
    if (a.rank != 2 || b.rank != 2 || c.rank != 2) {
        throw_internal("matmul: three matrices are needed: c {}, a {}, b {}", c.describe(), a.describe(),
                       b.describe());
    }
    const int64_t m = c.shape[0], n = c.shape[1], k = transpose_a ? a.shape[0] : a.shape[1];
    expect_shape(a, {transpose_a ? k : m, transpose_a ? m : k}, "matmul a");
    expect_shape(b, {transpose_b ? n : k, transpose_b ? k : n}, "matmul b");
    if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::f32)) {
        throw_internal("matmul: types do not fit: c {}, a {}, b {}", c.describe(), a.describe(),
                       b.describe());
    }
    epilogue.check_addend(addend, c, accumulate, "matmul");
    if (epilogue.present() && (accumulate || c.dtype != a.dtype))
        throw_internal("matmul: an epilogue excludes accumulate and a result {} of {}", c.describe(),
                       a.describe());
    epilogue.check(c, "matmul");
    if (bias.present()) expect(bias, DType::f32, {n}, "matmul bias");
    if (m == 0 || n == 0 || k == 0) throw_internal("matmul: an empty product {} x {} x {}", m, n, k);
    if (std::max({m, n, k}) > INT32_MAX) throw_internal("matmul: too large: {} x {} x {}", m, n, k);
}

}  // namespace speedrun
