#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"

namespace speedrun {

cpu::Gemm cpu::product_of(Tensor c, Tensor a, Tensor b, Tensor bias, const GemmOptions& options,
                          const char* label, Isa isa) {
    const bool transpose_a = options.transpose_a, transpose_b = options.transpose_b;
    const int64_t m = c.shape[0], n = c.shape[1], k = transpose_a ? a.shape[0] : a.shape[1];
    if (m == 0 || n == 0 || k == 0) throw_internal("{}: an empty product {} x {} x {}", label, m, n, k);

    return {.m = m,
            .n = n,
            .k = k,
            .input_dtype = a.dtype,
            .a = a.data,
            .a_stride = a.row_stride,
            .transpose_a = transpose_a,
            .b = b.data,
            .b_stride = b.row_stride,
            .transpose_b = transpose_b,
            .c = c.data,
            .c_stride = c.row_stride,
            .result = c.dtype,
            .beta = options.beta,
            .bias = bias.present() ? bias.as<float>() : nullptr,
            .base = options.base.present() ? options.base.data : nullptr,
            .amx = isa == Isa::amx_bf16,
            .symmetric = options.symmetric};
}

void CpuOps::product(Tensor c, Tensor a, Tensor b, Tensor bias, const cpu::GemmOptions& options,
                     const char* label, Stream& stream) {
    const cpu::Gemm work = cpu::product_of(c, a, b, bias, options, label, isa_);
    flops_ += work.flops();
    void* scratch = workspace(stream, cpu::product_workspace(work));
    cpu::submit(stream, label, [=] { cpu::run_product(work, scratch); });
}

void CpuOps::enqueue(const op::Matmul& a, Stream& stream) {
    product(a.c, a.a, a.b, a.bias,
            {.transpose_a = a.transpose_a,
             .transpose_b = a.transpose_b,
             .beta = a.accumulate || a.addend.present() ? 1.0f : 0.0f,
             .base = a.addend},
            "matmul", stream);
    apply(a.epilogue, a.c, stream);
}

void CpuOps::apply(const op::Epilogue& epilogue, const Tensor& c, Stream& stream) {
    constexpr Activation kActivation = Activation::relu_squared;
    if (epilogue.squares.present())
        enqueue(
            op::ActivationBackward{.dx = c, .dy = c, .saved = epilogue.squares, .activation = kActivation},
            stream);
    if (epilogue.relu_squared)
        enqueue(op::ActivationForward{.y = c, .x = c, .activation = kActivation}, stream);
    if (!epilogue.quantized.present()) return;
    enqueue(op::Quantize{.out = epilogue.quantized,
                         .x = c,
                         .scale = epilogue.scale,
                         .constant = epilogue.constant,
                         .amax = epilogue.amax},
            stream);
}

}  // namespace speedrun
