#include <algorithm>
#include <utility>

#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

void check_scale(Tensor scale, const char* name) {
    expect(scale, DType::f32, {1}, name);
}

constexpr int64_t kUnit = 16;  // bytes

}  // namespace

void check(const op::Quantize& a) {
    const int64_t rows = a.x.rows(), cols = a.x.cols();
    const Tensor& one = a.out.present() ? a.out : a.transposed;
    if (a.x.rank != 2 || is_fp8(a.x.dtype) || a.x.dtype == DType::i32)
        throw_internal("quantize: a real matrix is needed, not {}", a.x.describe());
    if (!is_fp8(one.dtype)) throw_internal("quantize: out is {}, not e4m3 or e5m2", one.describe());
    if (a.out.present()) expect(a.out, one.dtype, {rows, cols}, "quantize out");
    if (a.transposed.present()) expect(a.transposed, one.dtype, {cols, rows}, "quantize transposed");
    if (std::max(rows, cols) > INT32_MAX) throw_internal("quantize: {} is too large", a.x.describe());
    if (a.relu_squared.present()) {
        expect(a.relu_squared, a.x.dtype, {rows, cols}, "quantize relu_squared");
        if (one.dtype != DType::e4m3)
            throw_internal("quantize: relu_squared is rounded to e4m3, not {}", one.describe());
    }
    check_scale(a.scale, "quantize scale");
    if (a.amax.present()) check_scale(a.amax, "quantize amax");
}

void check(const op::RenewScales& a) {
    for (const auto& [tensor, name] : {std::pair{&a.scales, "renew_scales scales"},
                                       {&a.amax, "renew_scales amax"},
                                       {&a.factors, "renew_scales factors"}})
        expect(*tensor, DType::f32, {a.scales.numel()}, name);
}

void check(const op::ScaledMatmul& a) {
    if (a.a.rank != 2 || a.b.rank != 2 || a.c.rank != 2)
        throw_internal("scaled_matmul: three matrices are needed: c {}, a {}, b {}", a.c.describe(),
                       a.a.describe(), a.b.describe());
    const int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.a.shape[1];
    if (!is_fp8(a.a.dtype) || !is_fp8(a.b.dtype) || (a.a.dtype == DType::e5m2 && a.b.dtype == DType::e5m2) ||
        (a.c.dtype != DType::f32 && a.c.dtype != DType::bf16))
        throw_internal("scaled_matmul: types do not fit: c {}, a {}, b {}", a.c.describe(), a.a.describe(),
                       a.b.describe());
    expect(a.a, a.a.dtype, {m, k}, "scaled_matmul a");
    expect(a.b, a.b.dtype, {n, k}, "scaled_matmul b");
    if (m == 0 || n == 0 || k == 0) throw_internal("scaled_matmul: an empty product {} x {} x {}", m, n, k);
    if (std::max({m, n, k}) > INT32_MAX) throw_internal("scaled_matmul: too large: {} x {} x {}", m, n, k);
    for (const Tensor* x : {&a.a, &a.b}) {
        const bool rows = x->row_stride % kUnit == 0 && reinterpret_cast<uintptr_t>(x->data) % kUnit == 0;
        if (k % kUnit != 0 || !rows)
            throw_internal(
                "scaled_matmul: rows of {} ({} apart) do not start and end at multiples of {} bytes",
                x->describe(), x->row_stride, kUnit);
    }
    check_scale(a.scale_a, "scaled_matmul scale_a");
    check_scale(a.scale_b, "scaled_matmul scale_b");
}

}  // namespace speedrun
