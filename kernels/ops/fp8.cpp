#include "kernels/ops/fp8.h"

#include <algorithm>
#include <utility>

namespace speedrun {

namespace {

void check_scale(Tensor scale, const char* name) {
    expect(scale, DType::f32, {1}, name);
}

constexpr int64_t kUnit = 16;  // bytes

}  // namespace

void op::Quantize::check() const {
    const int64_t rows = x.rows(), cols = x.cols();
    const Tensor& one = out.present() ? out : transposed;
    if (x.rank != 2 || is_fp8(x.dtype) || x.dtype == DType::i32)
        throw_internal("quantize: a real matrix is needed, not {}", x.describe());
    if (!is_fp8(one.dtype)) throw_internal("quantize: out is {}, not e4m3 or e5m2", one.describe());
    if (out.present()) expect(out, one.dtype, {rows, cols}, "quantize out");
    if (transposed.present()) expect(transposed, one.dtype, {cols, rows}, "quantize transposed");
    if (std::max(rows, cols) > INT32_MAX) throw_internal("quantize: {} is too large", x.describe());
    check_scale(scale, "quantize scale");
    if (amax.present()) check_scale(amax, "quantize amax");
}

void op::RenewScales::check() const {
    for (const auto& [tensor, name] : {std::pair{&scales, "renew_scales scales"},
                                       {&amax, "renew_scales amax"},
                                       {&factors, "renew_scales factors"}})
        expect(*tensor, DType::f32, {scales.numel()}, name);
}

void op::ScaledMatmul::check() const {
    if (a.rank != 2 || b.rank != 2 || c.rank != 2)
        throw_internal("scaled_matmul: three matrices are needed: c {}, a {}, b {}", c.describe(),
                       a.describe(), b.describe());
    const int64_t m = c.shape[0], n = c.shape[1], k = a.shape[1];
    if (!is_fp8(a.dtype) || !is_fp8(b.dtype) || (a.dtype == DType::e5m2 && b.dtype == DType::e5m2) ||
        (c.dtype != DType::f32 && c.dtype != DType::bf16))
        throw_internal("scaled_matmul: types do not fit: c {}, a {}, b {}", c.describe(), a.describe(),
                       b.describe());
    expect(a, a.dtype, {m, k}, "scaled_matmul a");
    expect(b, b.dtype, {n, k}, "scaled_matmul b");
    if (m == 0 || n == 0 || k == 0) throw_internal("scaled_matmul: an empty product {} x {} x {}", m, n, k);
    if (std::max({m, n, k}) > INT32_MAX) throw_internal("scaled_matmul: too large: {} x {} x {}", m, n, k);
    for (const Tensor* x : {&a, &b}) {
        const bool rows = x->row_stride % kUnit == 0 && reinterpret_cast<uintptr_t>(x->data) % kUnit == 0;
        if (k % kUnit != 0 || !rows)
            throw_internal(
                "scaled_matmul: rows of {} ({} apart) do not start and end at multiples of {} bytes",
                x->describe(), x->row_stride, kUnit);
    }
    if (accumulate && epilogue.present())
        throw_internal("scaled_matmul: accumulate and an epilogue exclude each other");
    epilogue.check(c, "scaled_matmul");
    epilogue.check_addend(addend, c, accumulate, "scaled_matmul");
    check_scale(scale_a, "scaled_matmul scale_a");
    check_scale(scale_b, "scaled_matmul scale_b");
}

}  // namespace speedrun
