// Epilogues of matmuls: by our matmul for compute capability 9.0, or as a pass in place over the result.
// Roofline bound of the pass, c of b bytes: relu² 2·M·N·b, with its FP8 form M·N more, backward 3·M·N·b.
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/product_wgmma.h"
#include "kernels/ops/epilogue_model.h"

namespace speedrun {

namespace epilogue_cu {
namespace {

WgmmaProduct product_of(const op::Matmul& a) {
    return {.c = a.c,
            .a = a.a,
            .b = a.b,
            .transpose_a = a.transpose_a,
            .transpose_b = a.transpose_b,
            .bias = a.bias,
            .addend = a.addend};
}

WgmmaProduct product_of(const op::ScaledMatmul& a) {
    return {.c = a.c,
            .a = a.a,
            .b = a.b,
            .transpose_b = true,
            .scale_a = a.scale_a,
            .scale_b = a.scale_b,
            .addend = a.addend};
}

}  // namespace
}  // namespace epilogue_cu

template <class Arguments>
bool CudaOps::by_wgmma(const Arguments& a, Stream& stream) {
    if (!wgmma_epilogues_ || a.c.dtype != DType::bf16 || !wgmma_matmul_wins(a.product(), a.a.dtype))
        return false;
    WgmmaProduct product = epilogue_cu::product_of(a);
    product.relu_squared = a.epilogue.relu_squared;
    product.squares = a.epilogue.squares;
    product.quantized = a.epilogue.quantized;
    product.scale = a.epilogue.scale;
    product.constant = a.epilogue.constant;
    product.amax = a.epilogue.amax;
    if (wgmma_product(product, stream)) return true;
    const auto [m, n, k] = a.product().sizes;
    notes_.insert(
        fmt::format("our matmul by wgmma does not support {}x{}x{}, {} to {}: a pass runs after the matmul",
                    m, n, k, name_of(a.a.dtype), name_of(a.c.dtype)));
    return false;
}
template bool CudaOps::by_wgmma(const op::Matmul& a, Stream& stream);
template bool CudaOps::by_wgmma(const op::ScaledMatmul& a, Stream& stream);

void CudaOps::apply(const op::Epilogue& epilogue, const Tensor& c, Stream& stream) {
    constexpr Activation kActivation = Activation::relu_squared;
    if (epilogue.quantized.present()) return apply_quantized(epilogue, c, stream);
    if (epilogue.relu_squared)
        enqueue(op::ActivationForward{.y = c, .x = c, .activation = kActivation}, stream);
    if (!epilogue.squares.present()) return;
    enqueue(op::ActivationBackward{.dx = c, .dy = c, .saved = epilogue.squares, .activation = kActivation},
            stream);
}

}  // namespace speedrun
