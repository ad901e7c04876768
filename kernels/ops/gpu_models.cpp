#include "kernels/ops/gpu_models.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

// What of the vendor's figures a large copy and a large product reach. On an H100: 3.0 of 3.35 TB/s and 798
// of 989 TFLOP/s (a product of 8192 cubed random numbers), measured by others; assumed to be so elsewhere.
constexpr double kCopyShare = 3.0 / 3.35, kProductShare = 798.0 / 989.4;
constexpr double kTera = 1e12;
constexpr double kTile = 128;  // edge of a block's results in kernels/cuda/ops/matmul.cu, bf16

// "by count": a review of the compiled kernels, of instructions and of shared-memory clocks, for the modern
// 124M model on an H100, about 15% either way. Launches: as the launchers in kernels/cuda enqueue them. An
// operation without a line is one kernel, bound by memory.
constexpr KernelModel kKernels[] = {
    // Library products: QKV, output and MLP in 23.1 ms where the rate alone takes 20.9. Memory: a short inner
    // dimension, or an f32 sum read and written behind the product, leaves little to hide the bytes behind.
    {"matmul", Engine::library, 0.905, 0.55, 1, "assumed: cuBLASLt as others traced it"},
    // Twice the rate leaves twice the share to what is not products.
    {"scaled_matmul", Engine::library, 0.80, 0.55, 1, "assumed: cuBLASLt"},
    {"quantize", Engine::mma, 1, 0.70, 1, "assumed: a tile turned in shared memory"},
    {"column_sum", Engine::mma, 1, 0.80, 2, "assumed"},
    {"sort_ids", Engine::mma, 1, 0.10, 6, "assumed: two digits, three kernels each"},
    {"embedding_backward", Engine::mma, 1, 0.60, 2, "assumed: rows gathered, runs of frequent tokens split"},
    {"norm_forward", Engine::mma, 1, 0.76, 1, "assumed by count"},
    {"norm_backward", Engine::mma, 1, 0.76, 1, "assumed by count"},
    {"mix_norm_forward", Engine::mma, 1, 0.76, 1, "assumed by count"},
    {"sum_norm_backward", Engine::mma, 1, 0.76, 2, "assumed: as mix_norm_backward"},
    {"sum_norm_forward", Engine::mma, 1, 0.76, 1, "assumed: as mix_norm_forward"},
    {"mix_norm_backward", Engine::mma, 1, 0.76, 2, "assumed by count"},
    {"activation_forward", Engine::mma, 1, 0.89, 1, "assumed by count"},
    {"activation_backward", Engine::mma, 1, 0.89, 1, "assumed by count"},
    {"add", Engine::mma, 1, 0.85, 1, "assumed"},
    {"weighted_sum_backward", Engine::mma, 1, 0.76, 2, "assumed: as mix_norm_backward"},
    {"narrow_linear_forward", Engine::mma, 1, 0.50, 1, "assumed: short rows, little to hide them behind"},
    {"narrow_linear_backward", Engine::mma, 1, 0.50, 3, "assumed: short rows, little to hide them behind"},
    {"qk_norm_rotary_forward", Engine::mma, 1, 0.76, 1, "assumed by count"},
    {"qk_norm_rotary_backward", Engine::mma, 1, 0.76, 1, "assumed by count"},
    {"attention_forward", Engine::mma, 0.36, 0.80, 1, "assumed by count: softmax beside no product"},
    // Seven products where four are counted, in two kernels.
    {"attention_backward", Engine::mma, 0.23, 0.80, 4, "assumed by count: 7 products for 4 counted"},
    // Multiply-adds in f32, a quarter of whose rate products of f32 in shared memory reach.
    {"compose_heads_forward", Engine::mma, 0.015, 0.80, 1, "assumed by count: f32 without tensor cores"},
    {"compose_heads_backward", Engine::mma, 0.012, 0.80, 4, "assumed by count: 7 products for 4 counted"},
    {"exclude_own_value_backward", Engine::mma, 1, 0.76, 2, "assumed: as mix_norm_backward"},
    {"cross_entropy_part", Engine::mma, 1, 0.78, 1, "assumed as cross_entropy"},
    {"cross_entropy_of_parts", Engine::mma, 1, 0.78, 1, "assumed as cross_entropy"},
    {"cross_entropy", Engine::mma, 1, 0.78, 1,
     "assumed by count, with softcap: 35 instructions an element, two blocks a multiprocessor"},
    // Share of mma.sync's rate that a busy block reaches; that few blocks leave most of the card idle comes
    // on top.
    {"gram", Engine::tiles, 0.70, 0.80, 1, "assumed: share of a block; blocks counted"},
    {"polar_express", Engine::tiles, 0.70, 0.80, 18, "assumed: share of a block; blocks counted"},
    {"normuon_scale", Engine::mma, 1, 0.60, 3, "assumed"},
    {"fill", Engine::mma, 1, 0.85, 1, "assumed"},
    {"scale", Engine::mma, 1, 0.85, 1, "assumed"},
    {"cast", Engine::mma, 1, 0.85, 1, "assumed"},
    {"norm_term", Engine::mma, 1, 0.80, 2, "assumed"},
    {"sum", Engine::mma, 1, 0.80, 2, "assumed"},
    {"count_nonfinite", Engine::mma, 1, 0.80, 2, "assumed"},
    {"random_normal", Engine::mma, 1, 0.50, 1, "assumed"},
    {"random_uniform", Engine::mma, 1, 0.50, 1, "assumed"},
};
#define SPEEDRUN_NAME(name, Arguments) #name,
constexpr const char* kNames[] = {SPEEDRUN_EACH_OP(SPEEDRUN_NAME)};
#undef SPEEDRUN_NAME
constexpr KernelModel kOneKernel = {"", Engine::mma, 1, 0.80, 1, "assumed"};
constexpr KernelModel kHandProduct = {
    "matmul", Engine::tiles, 0.70, 0.55, 1, "assumed: share of a block; blocks counted"};

// FLOPs' time on one multiprocessor at a time: `blocks` of 128 x 128 results with inner dimension k, in whole
// waves.
double waves_ms(double blocks, double k, double flops_per_s, int num_sms) {
    const double waves = std::ceil(blocks / num_sms);
    return waves * 2 * kTile * kTile * k * num_sms / flops_per_s * 1e3;
}

double tiles_of(double n) {
    return std::ceil(n / kTile);
}

double triangle_of(double n) {  // tiles on and above the diagonal
    return tiles_of(n) * (tiles_of(n) + 1) / 2;
}

// An operation of Engine::tiles, as its launcher cuts it (kernels/cuda/ops/matmul.cu, polar_express.cu).
double tiled_ms(const OpCost& cost, double flops_per_s, int num_sms) {
    const auto [p0, p1, p2] = cost.product.sizes;
    const auto ms = [&](double blocks, double k) { return waves_ms(blocks, k, flops_per_s, num_sms); };
    if (std::string_view(cost.op) == "matmul")
        return ms(tiles_of(static_cast<double>(p0)) * tiles_of(static_cast<double>(p1)),
                  static_cast<double>(p2));
    const auto matrices = static_cast<double>(p0), rows = static_cast<double>(p1),
               cols = static_cast<double>(p2);
    if (std::string_view(cost.op) == "gram") return ms(matrices * triangle_of(rows), cols);
    const double side = std::min(rows, cols), length = std::max(rows, cols);
    return static_cast<double>(kPolarExpress.size()) *
           (ms(matrices * triangle_of(side), length) + ms(matrices * triangle_of(side), side) +
            ms(matrices * tiles_of(side) * tiles_of(length), side));
}

}  // namespace

const std::vector<GpuModel>& gpu_models() {
    static const std::vector<GpuModel> kModels = {
        // NVIDIA's data sheet: 3.35 TB/s, 989.4 TFLOP/s bf16 (dense), 1978.9 fp8, 66.9 f32, 132 SMs, 80 GB. mma.sync: about 65%
        // of what wgmma reaches. Gap: 840 nodes of a graph in 0.8 ms, by count.
        {"h100", "NVIDIA H100 SXM 80GB", 3.0 * kTera, 798 * kTera, 2 * 798 * kTera,
         66.9 * kProductShare * kTera, 0.65, 132, 80, 1.0,
         "copy and bf16 product measured by others; f32, mma.sync and gaps assumed"},
        // Data sheet: 4.8 TB/s, 141 GB, otherwise the H100's.
        {"h200", "NVIDIA H200 SXM 141GB", 4.3 * kTera, 798 * kTera, 2 * 798 * kTera,
         66.9 * kProductShare * kTera, 0.65, 132, 141, 1.0,
         "copy measured by others; products taken from the H100; f32, mma.sync and gaps assumed"},
        // Data sheet: 2.039 TB/s, 312 TFLOP/s bf16 (dense), 19.5 f32, 108 SMs, 80 GB. It has no other
        // instruction than mma.sync.
        {"a100", "NVIDIA A100 SXM 80GB", 2.039 * kCopyShare * kTera, 312 * kProductShare * kTera, 0,
         19.5 * kProductShare * kTera, 1.0, 108, 80, 1.3, "data sheet times an H100's shares; gaps assumed"},
        // Ada's white paper: 1.008 TB/s, 165.2 TFLOP/s bf16 with f32 sums (dense), 330.3 fp8, 82.6 f32, 128 SMs, 24 GB.
        {"4090", "NVIDIA GeForce RTX 4090", 1.008 * kCopyShare * kTera, 165.2 * kProductShare * kTera,
         330.3 * kProductShare * kTera, 82.6 * kProductShare * kTera, 1.0, 128, 24, 1.0,
         "data sheet times an H100's shares; gaps assumed"},
    };
    return kModels;
}

const GpuModel& find_gpu_model(std::string_view name) {
    std::string known;
    for (const GpuModel& gpu : gpu_models()) {
        if (name == gpu.name) return gpu;
        known += (known.empty() ? "" : ", ") + std::string(gpu.name);
    }
    throw_usage("no model of a GPU '{}'; there are {}", name, known);
}

KernelModel kernel_model(std::string_view op, bool hand_products) {
    if (hand_products && op == "matmul") return kHandProduct;
    for (const KernelModel& kernel : kKernels)
        if (op == kernel.op) return kernel;
    for (const char* name : kNames) {
        if (op != name) continue;
        KernelModel kernel = kOneKernel;
        kernel.op = name;
        return kernel;
    }
    throw_internal("there is no operation {}", op);
}

ModelledCall model_call(const OpCost& cost, DType real, const GpuModel& gpu, const KernelModel& kernel,
                        double share_of_floor) {
    const auto flops = static_cast<double>(cost.flops), bytes = static_cast<double>(cost.bytes);
    const bool fp8 = std::string_view(cost.op) == "scaled_matmul";
    if (fp8 && gpu.fp8_flops_per_s == 0)
        throw_usage("{} does not multiply 8-bit numbers (fp8): set model's to null, or ask for another GPU",
                    gpu.title);
    const double rate = gpu.flops_per_s(fp8 ? DType::e4m3 : real);
    ModelledCall call;
    const double compute_floor = flops / rate * 1e3, memory_floor = bytes / gpu.bytes_per_s * 1e3;
    call.floor_ms = std::max(compute_floor, memory_floor);
    call.compute_bound = compute_floor > memory_floor;
    call.gap_ms = kernel.launches * gpu.launch_gap_us * 1e-3;
    if (share_of_floor > 0) {
        call.ms = call.floor_ms / share_of_floor + call.gap_ms;
        return call;
    }
    const bool by_mma = kernel.engine != Engine::library && real == DType::bf16;
    const double reached = kernel.compute * (by_mma ? rate * gpu.mma_share : rate);
    const double products_ms =
        kernel.engine == Engine::tiles ? tiled_ms(cost, reached, gpu.num_sms) : flops / reached * 1e3;
    call.ms = std::max(products_ms, memory_floor / kernel.memory) + call.gap_ms;
    return call;
}

}  // namespace speedrun
