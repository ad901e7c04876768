#include "kernels/ops/epilogue_model.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace speedrun {

namespace {

using op::EpilogueKind;

// Our matmul: share of bytes_per_s; tiles of 128 x 256 outputs, one block a multiprocessor.
constexpr double kMemory = 0.80, kTileRows = 128, kTileColumns = 256;

struct Epilogue {
    const char* pass;                    // operation of the pass; null: the library has the epilogue
    double pass_elements, pass_bytes;    // per element of c: reads and writes of c's type, further bytes
    double fused_elements, fused_bytes;  // reads and writes besides c without a pass
    // Time of a tile of our matmul on one multiprocessor, with operands in bf16 and FP8: instructions of both warpgroups after the
    // last wait, without overlap.
    double tile_us, fp8_tile_us;
};

const Epilogue& epilogue_of(const op::ProductShape& product) {
    static constexpr Epilogue kEpilogues[] = {{nullptr, 0, 0, 0, 0, 0.44, 0.44},
                                              {"activation_forward", 2, 0, 0, 0, 0.60, 0.74},
                                              {"quantize", 2, 1, 0, 1, 1.10, 1.26},
                                              {"activation_backward", 3, 0, 1, 0, 1.24, 1.24},
                                              {nullptr, 0, 0, 1, 0, 0.77, 0.92}};
    return kEpilogues[static_cast<size_t>(product.epilogue)];
}

double elements_of(const op::ProductShape& product) {
    return static_cast<double>(product.sizes[0]) * static_cast<double>(product.sizes[1]);
}

double fused_bytes(const op::ProductShape& product, DType real) {
    const Epilogue& epilogue = epilogue_of(product);
    const auto size = static_cast<double>(size_of(real));
    return elements_of(product) * (epilogue.fused_elements * size + epilogue.fused_bytes);
}

double pass_ms(const op::ProductShape& product, DType real, const GpuModel& gpu) {
    const Epilogue& epilogue = epilogue_of(product);
    const auto size = static_cast<double>(size_of(real));
    const double bytes = elements_of(product) * (epilogue.pass_elements * size + epilogue.pass_bytes);
    return bytes / (gpu.bytes_per_s * kernel_model(epilogue.pass).memory) * 1e3;
}

const char* matmul_of(DType operands) {
    return is_fp8(operands) ? "scaled_matmul" : "matmul";
}

// The matmul with its minimum bytes, c in bf16.
OpCost cost_of(const op::ProductShape& product, DType operands) {
    const auto [m, n, k] = product.sizes;
    OpCost cost;
    cost.op = matmul_of(operands);
    cost.product = product;
    cost.flops = 2 * m * n * k;
    cost.bytes = (m + n) * k * size_of(operands) + m * n * size_of(DType::bf16) +
                 static_cast<int64_t>(fused_bytes(product, DType::bf16));
    return cost;
}

}  // namespace

const char* const kWgmmaMatmulSource = "assumed: the library's rate, epilogue counted; not yet run";

ModelledCall model_epilogue(const OpCost& cost, DType compute_dtype, const GpuModel& gpu,
                            const KernelModel& kernel, double share_of_bound) {
    const DType operands = std::string_view(cost.op) == "scaled_matmul" ? DType::e4m3 : compute_dtype;
    const double gap_ms = gpu.launch_gap_us * 1e-3;
    OpCost plain = cost;
    plain.product.epilogue = EpilogueKind::none;
    // The library reads the addend while it computes, at its share of bytes_per_s: assumed, as for the result.
    const bool by_pass = epilogue_of(cost.product).pass;
    if (by_pass) plain.bytes -= static_cast<int64_t>(fused_bytes(cost.product, compute_dtype));
    ModelledCall call = model_call(plain, compute_dtype, gpu, kernel, share_of_bound);
    const double compute_ms = static_cast<double>(cost.flops) / gpu.flops_per_s(operands) * 1e3,
                 memory_ms = static_cast<double>(cost.bytes) / gpu.bytes_per_s * 1e3;
    call.bound_ms = std::max(compute_ms, memory_ms);
    call.compute_bound = compute_ms > memory_ms;
    if (kernel.wgmma_epilogue && wgmma_matmul_wins(cost.product, operands)) {
        call.gap_ms = gap_ms;
        call.ms = wgmma_matmul_ms(cost.product, operands, gpu) + gap_ms;
        return call;
    }
    if (!by_pass) return call;
    call.gap_ms += gap_ms;
    call.ms += pass_ms(cost.product, compute_dtype, gpu) + gap_ms;
    return call;
}

double wgmma_matmul_ms(const op::ProductShape& product, DType operands, const GpuModel& gpu) {
    const OpCost cost = cost_of(product, operands);
    const double tiles = std::ceil(static_cast<double>(product.sizes[0]) / kTileRows) *
                         std::ceil(static_cast<double>(product.sizes[1]) / kTileColumns);
    const double waves = std::ceil(tiles / gpu.num_sms);
    const double rate = gpu.flops_per_s(operands) * kernel_model(matmul_of(operands)).compute / gpu.num_sms;
    const double flops = 2 * kTileRows * kTileColumns * static_cast<double>(product.sizes[2]);
    const Epilogue& epilogue = epilogue_of(product);
    const double tile_ms =
        flops / rate * 1e3 + (is_fp8(operands) ? epilogue.fp8_tile_us : epilogue.tile_us) * 1e-3;
    return std::max(waves * tile_ms, static_cast<double>(cost.bytes) / (gpu.bytes_per_s * kMemory) * 1e3);
}

bool wgmma_matmul_wins(const op::ProductShape& product, DType operands) {
    if (product.epilogue == EpilogueKind::none || operands == DType::f32) return false;
    const GpuModel& h100 = find_gpu_model("h100");
    const OpCost cost = cost_of(product, operands);
    const double by_library = model_epilogue(cost, DType::bf16, h100, kernel_model(cost.op)).ms;
    return wgmma_matmul_ms(product, operands, h100) + h100.launch_gap_us * 1e-3 < by_library;
}

}  // namespace speedrun
