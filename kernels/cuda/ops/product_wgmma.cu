// Matmuls by wgmma with an epilogue. Main loop: product_wgmma.cuh; epilogues: product_wgmma_epilogues.cuh.
//
// Roofline bound: 2·M·N·K FLOP; each operand read and each result written once.
// A tile of c has 128 x 256 elements, a step of K 64 bf16 or 128 e4m3. Blocks have 384 threads and 224 KiB of shared memory.
#include "kernels/cuda/ops/product_wgmma.h"

#include "kernels/cuda/ops/product_wgmma_epilogues.cuh"

namespace speedrun {

namespace product_wgmma {

template <class Form, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    product_wgmma_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, int k,
                         TileList tiles, Epilogue epilogue) {
    run<Form>(a, b, k, tiles, epilogue);
}

}  // namespace product_wgmma

namespace product_wgmma_cu {
namespace {

using namespace product_wgmma;

size_t rank(const WgmmaProduct& x) {
    return static_cast<size_t>(x.c.rank);
}

template <class Form, bool kBias, bool kAddend, class Body>
bool launch_with(const WgmmaProduct& x, const Body& body, Stream& stream) {
    const int64_t m = x.c.shape[rank(x) - 2], n = x.c.cols(), batch = x.c.rows() / m;
    const int64_t k = x.a.shape[rank(x) - (Form::kTransposeA ? 2 : 1)];
    PanelEpilogue<Value<sizeof(typename Form::Element) == 1, kBias, kAddend>, Body> epilogue{};
    epilogue.value.scale_a = static_cast<const float*>(x.scale_a.data);
    epilogue.value.scale_b = static_cast<const float*>(x.scale_b.data);
    epilogue.value.bias = static_cast<const float*>(x.bias.data);
    epilogue.value.addend = Rows<const Bf16>(x.addend);
    epilogue.body = body;
    epilogue.m = static_cast<int>(m);
    epilogue.n = static_cast<int>(n);
    const TileList tiles(m, n, batch);
    launch(product_wgmma_kernel<Form, decltype(epilogue)>, grid_of(tiles, stream), kThreads, kSharedBytes,
           stream, map_a<Form>(x.a, stream), map_b<Form>(x.b, stream), static_cast<int>(k), tiles, epilogue);
    return true;
}

template <class Form>
bool launch_squares(const WgmmaProduct& x, Stream& stream) {
    const Rows<Bf16> c(x.c);
    if (!x.quantized.present()) return launch_with<Form, false, false>(x, StoreSquares{{c}}, stream);
    StoreQuantizedSquares body{};
    body.c = c;
    body.quantized = Rows<E4m3>(x.quantized);
    body.scale = x.scale.as<float>();
    body.constant = x.constant;
    body.amax = static_cast<uint32_t*>(x.amax.data);
    return launch_with<Form, false, false>(x, body, stream);
}

// True if the rows of all these begin at multiples of 16 bytes; eight values of e4m3 are written at a time.
bool aligned(const WgmmaProduct& x) {
    return aligned_rows(8, {x.c, x.addend, x.squares, x.quantized}) && aligned_rows(16, {x.a, x.b}) &&
           aligned_rows(4, {x.bias});
}

bool fits(const WgmmaProduct& x) {
    constexpr int64_t kMost = int64_t{1} << 30;  // rows and columns
    if (x.c.dtype != DType::bf16 || (x.c.rank != 2 && x.c.rank != 3)) return false;
    for (const Tensor* t : {&x.c, &x.a, &x.b})
        if (t->rank != x.c.rank || t->numel() == 0 || t->rows() > kMost || t->cols() > kMost) return false;
    return x.c.cols() % 8 == 0 && aligned(x);
}

}  // namespace
}  // namespace product_wgmma_cu

bool wgmma_product(const WgmmaProduct& x, Stream& stream) {
    using namespace product_wgmma_cu;
    if (!fits(x)) return false;
    const bool nt = !x.transpose_a && x.transpose_b, nn = !x.transpose_a && !x.transpose_b;
    const bool fp8 = x.a.dtype == DType::e4m3 && x.b.dtype == DType::e4m3 && nt,
               bf16 = x.a.dtype == DType::bf16 && x.b.dtype == DType::bf16;
    using Nt = Form<Bf16, false, true>;
    using Nn = Form<Bf16, false, false>;
    using Tn = Form<Bf16, true, false>;
    using Fp8 = Form<E4m3, false, true>;
    const StoreRounded store{Rows<Bf16>(x.c)};
    if (x.relu_squared || x.squares.present()) {
        if (x.bias.present() || x.addend.present()) return false;
        if (x.relu_squared && fp8) return launch_squares<Fp8>(x, stream);
        if (x.relu_squared) return bf16 && nt && launch_squares<Nt>(x, stream);
        const StoreThroughSquares body{{Rows<Bf16>(x.c)}, Rows<const Bf16>(x.squares)};
        return bf16 && nn && launch_with<Nn, false, false>(x, body, stream);
    }
    const bool biased = x.bias.present(), adds = x.addend.present();
    if (fp8 && !biased && adds) return launch_with<Fp8, false, true>(x, store, stream);
    if (fp8 && !biased) return launch_with<Fp8, false, false>(x, store, stream);
    if (!bf16) return false;
    if (biased && adds) return false;
    if (nt && biased) return launch_with<Nt, true, false>(x, store, stream);
    if (nt && adds) return launch_with<Nt, false, true>(x, store, stream);
    if (nt) return launch_with<Nt, false, false>(x, store, stream);
    if (biased) return false;
    if (nn && adds) return launch_with<Nn, false, true>(x, store, stream);
    if (nn) return launch_with<Nn, false, false>(x, store, stream);
    return !x.transpose_b && !adds && launch_with<Tn, false, false>(x, store, stream);
}

}  // namespace speedrun
