// FP8 quantization, and FP8 matmuls without a library. GPUs from sm_89 on.
//
// Roofline bound of quantize, real of b bytes: b + 1 bytes per element, 1 more with the transposed output, b
// more with relu². Of scaled_matmul: as matmul.cu at twice the rate.
#include <algorithm>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/activation.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/matmul_mma.cuh"

namespace speedrun {

namespace fp8_cu {
namespace {

constexpr int kEdge = 64, kUnit = 8;  // rows and columns of a block's tile; bytes per access
constexpr int kQuantizeThreads =
    256;  // per thread: two times eight columns of a row, then two times eight rows of a column
constexpr int kRowsPerPass = kQuantizeThreads / (kEdge / kUnit);
constexpr int64_t kTileBytes = kEdge * kEdge;

template <class Real, class To>
struct QuantizeArguments {
    Rows<Real> x;              // kSquares: becomes relu(x)², which is quantized
    Rows<To> out, transposed;  // null: not requested
    int rows, cols;
    float* scale;
    float constant;
    uint32_t* amax;  // bits of a non-negative value; null: not requested
};

// Offset of eight columns of a row in the tile. Units are permuted by the row's group of eight, so that eight
// groups of one column are in different banks.
__device__ __forceinline__ int unit_offset(int row, int unit) {
    return row * kEdge + (unit ^ row / kUnit) * kUnit;
}

template <bool kAligned, class To>
__device__ __forceinline__ void store_unit(To* to, uint2 unit, int count) {
    if constexpr (kAligned) {
        if (count > 0) store_word(reinterpret_cast<uint2*>(to), unit);
    } else {
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
            if (i < count) to[i].bits = static_cast<uint8_t>((i < 4 ? unit.x : unit.y) >> 8 * (i % 4));
        }
    }
}

// A thread's position in a block's tile.
struct TilePlace {
    int row0, col0;  // origin of the tile
    int line, unit;

    __device__ __forceinline__ TilePlace()
        : row0(static_cast<int>(blockIdx.y) * kEdge),
          col0(static_cast<int>(blockIdx.x) * kEdge),
          line(static_cast<int>(threadIdx.x) / (kEdge / kUnit)),
          unit(static_cast<int>(threadIdx.x) % (kEdge / kUnit)) {}
};

// Writes the tile's columns as rows of `to`, a matrix of cols x rows.
template <bool kAligned, class To>
__device__ __forceinline__ void store_columns(Rows<To> to, int rows, int cols, const uint32_t* tile,
                                              const TilePlace& at) {
#pragma unroll
    for (int c = at.line; c < kEdge; c += kRowsPerPass) {
        const int col = at.col0 + c, row = at.row0 + at.unit * kUnit;
        uint32_t halves[2] = {};
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
            const uint32_t four = tile[unit_offset(at.unit * kUnit + i, c / kUnit) / 4 + c % kUnit / 4];
            halves[i / 4] |= (four >> 8 * (c % 4) & 0xffu) << 8 * (i % 4);
        }
        const int count = col < cols ? max(0, min(kUnit, rows - row)) : 0;
        store_unit<kAligned>(to.at(col, row), make_uint2(halves[0], halves[1]), count);
    }
}

// kAligned: rows and columns are multiples of eight, and all rows begin at multiples of eight elements.
template <class Real, class To, bool kAligned, bool kSquares>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_kernel(QuantizeArguments<Real, To> p) {
    wait_for_prior_kernels();
    uint32_t* const tile = shared_memory<uint32_t>(0, kTileBytes / 4);  // four values per word
    const TilePlace at;
    const float scale = p.constant > 0.0f ? p.constant : *p.scale,
                inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    if (p.constant > 0.0f && blockIdx.x + blockIdx.y + threadIdx.x == 0) *p.scale = scale;
    uint32_t largest = 0;
#pragma unroll
    for (int r = at.line; r < kEdge; r += kRowsPerPass) {
        const int row = at.row0 + r, col = at.col0 + at.unit * kUnit;
        const int count = row < p.rows ? max(0, min(kUnit, p.cols - col)) : 0;
        Vector<kUnit> v;
        if constexpr (kAligned) {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) v[i] = 0.0f;
            if (count > 0) v = load_vector<kUnit>(p.x.at(row, col));
        } else {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) v[i] = i < count ? to_float(*p.x.at(row, col + i)) : 0.0f;
        }
        if constexpr (kSquares) {
            // Rounded like the stored output, which a separate operation would read.
#pragma unroll
            for (int i = 0; i < kUnit; ++i) v[i] = to_float(from_float<Real>(relu_squared(v[i])));
            if constexpr (kAligned) {
                if (count > 0) store_vector<kUnit>(p.x.at(row, col), v);
            } else {
#pragma unroll
                for (int i = 0; i < kUnit; ++i)
                    if (i < count) *p.x.at(row, col + i) = from_float<Real>(v[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
            largest = larger(largest, magnitude_bits(v[i]));
            v[i] *= inverse;
        }
        const uint2 eight =
            make_uint2(ptx::pack_fp8<To>(v[0], v[1], v[2], v[3]), ptx::pack_fp8<To>(v[4], v[5], v[6], v[7]));
        if (p.out.data) store_unit<kAligned>(p.out.at(row, col), eight, count);
        if (p.transposed.data)
            store_word(reinterpret_cast<uint2*>(tile + unit_offset(r, at.unit) / 4), eight);
    }
    if (p.amax) note_amax(p.amax, largest);
    if (!p.transposed.data) return;
    __syncthreads();
    store_columns<kAligned>(p.transposed, p.rows, p.cols, tile, at);
}

__global__ void __launch_bounds__(sizes::kWarp)
    renew_scales_kernel(float* scales, float* amax, const float* factors, int count) {
    wait_for_prior_kernels();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += sizes::kWarp) {
        scales[i] = factors[i] * amax[i];
        amax[i] = 0.0f;
    }
}

template <class Body>
void with_fp8(DType dtype, Body&& body) {
    if (dtype == DType::e4m3) return body.template operator()<E4m3>();
    return body.template operator()<E5m2>();
}

dim3 tiles_of(const Tensor& x) {
    return {grid_of(x.cols(), kEdge), grid_of(x.rows(), kEdge)};
}

// True if the rows and columns of x, and the row starts of all tensors, are multiples of eight elements.
bool in_eights(const Tensor& x, std::initializer_list<Tensor> all) {
    return x.rows() % kUnit == 0 && x.cols() % kUnit == 0 && aligned_rows(kUnit, all);
}

template <class Real, class To, bool kSquares>
void launch_quantize(const op::Quantize& a, LaunchSite site) {
    QuantizeArguments<Real, To> p{};
    p.x = Rows<Real>(a.x);
    p.out = Rows<To>(a.out);
    p.transposed = Rows<To>(a.transposed);
    p.rows = static_cast<int>(a.x.rows());
    p.cols = static_cast<int>(a.x.cols());
    p.scale = a.scale.as<float>();
    p.constant = a.constant;
    p.amax = static_cast<uint32_t*>(a.amax.data);
    auto* const kernel = in_eights(a.x, {a.x, a.out, a.transposed})
                             ? quantize_kernel<Real, To, true, kSquares>
                             : quantize_kernel<Real, To, false, kSquares>;
    launch(kernel, tiles_of(a.x), kQuantizeThreads, kTileBytes, site, p);
}

template <class A, class B, class Out>
void launch_product(const op::ScaledMatmul& a, LaunchSite site) {
    constexpr int kPair = 2;
    product::Arguments<Bf16, Out> p{};
    p.c = a.c.as<Out>();
    p.addend = static_cast<const Out*>(a.accumulate ? a.c.data : a.addend.data);
    p.a = static_cast<const Bf16*>(a.a.data);
    p.b = static_cast<const Bf16*>(a.b.data);
    p.c_stride = p.addend_stride = a.c.row_stride;
    p.a_stride = a.a.row_stride / kPair;
    p.b_stride = a.b.row_stride / kPair;
    p.m = static_cast<int>(a.c.shape[0]);
    p.n = static_cast<int>(a.c.shape[1]);
    p.k = static_cast<int>(a.a.shape[1]) / kPair;
    p.steps_of_part = (p.k + product::kStep - 1) / product::kStep;
    p.beta = 1.0f;
    p.paired = reinterpret_cast<uintptr_t>(p.c) % (2 * sizeof(Out)) == 0 && p.c_stride % 2 == 0;
    const auto tiles = [](int n) { return (n + product::kTile - 1) / product::kTile; };
    launch(product::matmul_fp8_kernel<A, B, Out>, grid_of(int64_t{tiles(p.m)} * tiles(p.n), 1),
           product::kThreads, product::kMmaSharedBytes, site, p,
           static_cast<const float*>(a.scale_a.as<float>()),
           static_cast<const float*>(a.scale_b.as<float>()));
}

}  // namespace
}  // namespace fp8_cu

void CudaOps::enqueue(const op::Quantize& a, Stream& stream) {
    using namespace fp8_cu;
    if (a.x.numel() == 0) return;
    const LaunchSite site(stream);
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        with_fp8((a.out.present() ? a.out : a.transposed).dtype,
                 [&]<class To>() { launch_quantize<Real, To, false>(a, site); });
    });
}

void CudaOps::apply_quantized(const op::Epilogue& epilogue, const Tensor& c, Stream& stream) {
    using namespace fp8_cu;
    const LaunchSite site(stream);
    cuda::with_real(c.dtype, [&]<class Real>() {
        launch_quantize<Real, E4m3, true>({.out = epilogue.quantized,
                                           .x = c,
                                           .scale = epilogue.scale,
                                           .constant = epilogue.constant,
                                           .amax = epilogue.amax},
                                          site);
    });
}

void CudaOps::enqueue(const op::RenewScales& a, Stream& stream) {
    using namespace fp8_cu;
    launch(renew_scales_kernel, 1, sizes::kWarp, 0, stream, a.scales.as<float>(), a.amax.as<float>(),
           a.factors.as<float>(), static_cast<int>(a.scales.numel()));
}

void CudaOps::enqueue(const op::ScaledMatmul& a, Stream& stream) {
    using namespace fp8_cu;
    flops_ += 2 * a.c.numel() * a.a.cols();
    if (by_wgmma(a, stream)) return;
    if (library_ && library_->scaled_matmul(a, stream)) return apply(a.epilogue, a.c, stream);
    const LaunchSite site(stream);
    cuda::with_real(a.c.dtype, [&]<class Out>() {
        if (a.a.dtype == DType::e5m2) return launch_product<E5m2, E4m3, Out>(a, site);
        if (a.b.dtype == DType::e5m2) return launch_product<E4m3, E5m2, Out>(a, site);
        launch_product<E4m3, E4m3, Out>(a, site);
    });
    apply(a.epilogue, a.c, stream);
}

}  // namespace speedrun
