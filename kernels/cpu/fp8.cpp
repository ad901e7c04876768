// FP8 matmuls, emulated. Each FP8 value is exact in bf16 and products of two are exact in f32, so only the
// summation order differs from a GPU.
#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace speedrun {

namespace {

constexpr int64_t kTile = 64;  // rows and columns quantized together

template <class Body>
void with_fp8(DType dtype, Body&& body) {
    if (dtype == DType::e4m3) return body.template operator()<E4m3>();
    return body.template operator()<E5m2>();
}

// to[c][r] = tile[r][c] for the first `rows` and `cols`.
template <class Fp8>
void store_columns(const Tensor& to, int64_t row, int64_t col, const Fp8 (&tile)[kTile][kTile]) {
    const int64_t rows = std::min(kTile, to.cols() - row), cols = std::min(kTile, to.rows() - col);
    for (int64_t c = 0; c < cols; ++c) {
        Fp8* line = to.as<Fp8>() + (col + c) * to.row_stride + row;
        for (int64_t r = 0; r < rows; ++r) line[r] = tile[r][c];
    }
}

// Returns the maximum magnitude of the tile as bits. Their integer order is the order of values, with NaN
// above all.
template <class Real, class To>
uint32_t quantize_tile(const op::Quantize& a, int64_t row, int64_t col, float inverse) {
    const int64_t rows = std::min(kTile, a.x.rows() - row), cols = std::min(kTile, a.x.cols() - col);
    uint32_t largest = 0;
    To tile[kTile][kTile];
    for (int64_t r = 0; r < rows; ++r) {
        const Real* x = a.x.as<Real>() + (row + r) * a.x.row_stride + col;
        for (int64_t c = 0; c < cols; ++c) {
            const auto value = static_cast<float>(x[c]);
            largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
            tile[r][c] = To(value * inverse);
        }
        if (a.out.present()) std::copy_n(tile[r], cols, a.out.as<To>() + (row + r) * a.out.row_stride + col);
    }
    if (a.transposed.present()) store_columns(a.transposed, row, col, tile);
    return largest;
}

int64_t tiles_of(const Tensor& x) {
    return cpu::ceil_div(x.rows(), kTile) * cpu::ceil_div(x.cols(), kTile);
}

// Calls body(row, col) for each tile of x.
template <class Body>
void for_tiles(const Tensor& x, const Body& body) {
    const int64_t across = cpu::ceil_div(x.cols(), kTile);
    cpu::parallel_for(tiles_of(x), [&](int64_t tile) { body(tile / across * kTile, tile % across * kTile); });
}

void widen(Bf16* to, const Tensor& x) {
    with_fp8(x.dtype, [&]<class From>() {
        std::array<Bf16, 256> values;
        for (size_t bits = 0; bits < values.size(); ++bits) {
            From number;
            number.bits = static_cast<uint8_t>(bits);
            values[bits] = Bf16(static_cast<float>(number));
        }
        const int64_t cols = x.cols();
        cpu::parallel_for(x.rows(), [&](int64_t row) {
            const From* from = x.as<From>() + row * x.row_stride;
            for (int64_t c = 0; c < cols; ++c) to[row * cols + c] = values[from[c].bits];
        });
    });
}

}  // namespace

void CpuOps::enqueue(const op::Quantize& a, Stream& stream) {
    const int64_t across = cpu::ceil_div(a.x.cols(), kTile), tiles = tiles_of(a.x);
    auto* const largest = static_cast<uint32_t*>(workspace(stream, tiles * int64_t{sizeof(uint32_t)}));
    cpu::submit(stream, "quantize", [=] {
        if (a.constant > 0) *a.scale.as<float>() = a.constant;
        const float scale = *a.scale.as<float>(), inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            with_fp8((a.out.present() ? a.out : a.transposed).dtype, [&]<class To>() {
                for_tiles(a.x, [&](int64_t row, int64_t col) {
                    largest[row / kTile * across + col / kTile] =
                        quantize_tile<Real, To>(a, row, col, inverse);
                });
            });
        });
        if (!a.amax.present()) return;
        auto amax = std::bit_cast<uint32_t>(*a.amax.as<float>());
        for (int64_t tile = 0; tile < tiles; ++tile) amax = std::max(amax, largest[tile]);
        *a.amax.as<float>() = std::bit_cast<float>(amax);
    });
}

void CpuOps::enqueue(const op::RenewScales& a, Stream& stream) {
    cpu::submit(stream, "renew_scales", [=] {
        for (int64_t i = 0; i < a.scales.numel(); ++i) {
            a.scales.as<float>()[i] = a.factors.as<float>()[i] * a.amax.as<float>()[i];
            a.amax.as<float>()[i] = 0.0f;
        }
    });
}

void CpuOps::enqueue(const op::ScaledMatmul& a, Stream& stream) {
    const int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.a.shape[1];
    flops_ += 2 * m * n * k;
    cpu::Gemm work{.m = m,
                   .n = n,
                   .k = k,
                   .input_dtype = DType::bf16,
                   .a = nullptr,
                   .a_stride = k,
                   .transpose_a = false,
                   .b = nullptr,
                   .b_stride = k,
                   .transpose_b = true,
                   .c = a.c.data,
                   .c_stride = a.c.row_stride,
                   .result = a.c.dtype,
                   .beta = a.accumulate || a.addend.present() ? 1.0f : 0.0f,
                   .base = a.addend.data,
                   .scale_a = a.scale_a.as<float>(),
                   .scale_b = a.scale_b.as<float>(),
                   .amx = isa_ == Isa::amx_bf16};
    const auto bytes = [](const Tensor& x) { return cpu::round_up(x.numel() * size_of(DType::bf16), 64); };
    const int64_t bytes_a = bytes(a.a), bytes_b = bytes(a.b);
    auto* const memory =
        static_cast<char*>(workspace(stream, bytes_a + bytes_b + cpu::product_workspace(work)));
    work.a = memory;
    work.b = memory + bytes_a;
    cpu::submit(stream, "scaled_matmul", [=] {
        widen(reinterpret_cast<Bf16*>(memory), a.a);
        widen(reinterpret_cast<Bf16*>(memory + bytes_a), a.b);
        cpu::run_product(work, memory + bytes_a + bytes_b);
    });
    apply(a.epilogue, a.c, stream);
}

}  // namespace speedrun
