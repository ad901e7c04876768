#include "kernels/ops/gpu_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "kernels/ops/epilogue_model.h"

namespace speedrun {

namespace {

// Shares of the data sheet's figures that a large copy and a large matmul reach. H100: 3.0 of 3.35 TB/s and 798 of 989
// TFLOP/s (matmul of 8192³ random values; records/gpu_checks: 3.02 and 779 to 817, depending on temperature). Assumed
// for other GPUs.
constexpr double kCopyShare = 3.0 / 3.35, kProductShare = 798.0 / 989.4;
constexpr double kTera = 1e12;
constexpr double kF32OfH100 = 41.8 * kTera, kGapOfH100 = 1.35;
// Share of a link's bandwidth that collectives reach: assumed.
constexpr double kLinkShare = 0.8;
constexpr const char* kNvlink = "NVLink's data sheet, 80% of it assumed reached";
constexpr double kTile = 128;  // edge of a block's output tile in kernels/cuda/ops/matmul.cu, bf16

// "measured": on the H100 of records/gpu_checks, 2026-11-27, each operation alone at the shapes of op_bench. "in a
// step": by the timeline of three steps of the modern 124M model (docs/gpus.md). Other GPUs are assumed to be alike. Launches are
// those of the launchers in kernels/cuda. An operation without a line is one memory-bound kernel.
constexpr const char* kAlone = "measured on an H100";
constexpr const char* kInStep = "measured on an H100, in a step";
constexpr const char* kCountedLoads = "assumed: instructions counted; not yet run";
constexpr const char* kPerLayer = "measured on an H100, per layer in a step; 0.90 assumed with all layers";
constexpr const char* kOneStrip = "measured on an H100, with one strip of queries a warp: by tiles";
constexpr KernelModel kKernels[] = {
    // At the power limit; alone, single shapes reach 0.75 to 0.96. Memory: with a short inner dimension, or an f32 sum read
    // and written after the matmul, little compute overlaps with the bytes. The second launch clears the library's counters.
    {"matmul", Engine::library, 0.93, 0.55, 2, kInStep},
    // 1,165 to 1,533 TFLOP/s in the three matmuls of the FP8 head of the record of 31 October 2025 (its profile).
    {"scaled_matmul", Engine::library, 0.87, 0.55, 2, "measured by others, in a step: cuBLASLt"},
    {"quantize", Engine::mma, 1, 0.70, 1, "assumed: a tile turned in shared memory"},
    {"column_sum", Engine::mma, 1, 0.80, 2, "assumed"},
    // 32,768 ids: 16 us of latency in four kernels. Six kernels with serial scans: 0.0013, measured.
    {"sort_ids", Engine::mma, 1, 0.008, 4, kCountedLoads},
    // Bytes count a row for each token; repeated tokens hit the L2 cache.
    {"embedding_forward", Engine::mma, 1, 1, 1, kInStep},
    // One block per token: 0.80, measured in a step; 0.45 of the bytes of distinct tokens in the report's case.
    {"embedding_backward", Engine::mma, 1, 1, 2, kCountedLoads},
    // One load in flight per lane: 0.85, measured. Now all loads of a row are, as in norm_backward.
    {"norm_forward", Engine::mma, 1, 0.92, 1, kCountedLoads},
    {"norm_backward", Engine::mma, 1, 0.94, 1, kAlone},
    // With two terms and two loads in flight per lane: 0.88; with three terms 0.92, measured. Now all loads of a row are.
    {"sum_norm_forward", Engine::mma, 1, 0.92, 1, kCountedLoads},
    // With three terms; with up to two: memory_share().
    {"sum_norm_backward", Engine::mma, 1, 0.79, 2, kAlone},
    {"activation_forward", Engine::mma, 1, 0.97, 1, kAlone},
    {"activation_backward", Engine::mma, 1, 0.99, 1, kAlone},
    {"add", Engine::mma, 1, 0.93, 1, kAlone},
    {"weighted_sum_forward", Engine::mma, 1, 0.93, 1, kAlone},
    {"weighted_sum_backward", Engine::mma, 1, 0.78, 2, kAlone},
    {"shared_sources_backward", Engine::mma, 1, 0.78, 1, "assumed: as weighted_sum_backward"},
    {"narrow_linear_forward", Engine::mma, 1, 0.08, 1, kAlone},
    {"narrow_linear_backward", Engine::mma, 1, 0.09, 3, kAlone},
    {"qk_norm_rotary_forward", Engine::mma, 1, 0.86, 1, "measured on an H100: 0.90, with values 0.75"},
    {"qk_norm_rotary_backward", Engine::mma, 1, 0.69, 1, kAlone},
    {"attention_forward", Engine::mma, 0.285, 0.80, 1, kOneStrip},
    // Seven matmuls, four of them counted, in two kernels.
    {"attention_backward", Engine::mma, 0.23, 0.80, 4, kOneStrip},
    {"offset_keys_forward", Engine::mma, 1, 0.87, 1, kAlone},
    {"offset_keys_backward", Engine::mma, 1, 0.88, 1, kAlone},
    // f32 multiply-adds, without tensor cores.
    {"compose_heads_forward", Engine::mma, 0.019, 0.80, 1, kAlone},
    {"compose_heads_backward", Engine::mma, 0.010, 0.80, 4, kAlone},
    {"exclude_own_value_forward", Engine::mma, 1, 0.92, 1, kAlone},
    {"exclude_own_value_backward", Engine::mma, 1, 0.80, 2, kAlone},
    {"cross_entropy_part", Engine::mma, 1, 0.84, 1, kAlone},
    {"cross_entropy_of_parts", Engine::mma, 1, 0.87, 1, kAlone},
    // The measured share of cross_entropy_of_parts, at 24 instructions per element. On an H100 bytes take 2.2 ms,
    // instructions (16.5 per element, 3 more per row and element) 1.1 ms, and special functions (2.25) 1.0 ms. 8-bit
    // gradients: memory_share().
    {"cross_entropy", Engine::mma, 1, 0.87, 1, kCountedLoads},
    // Share of mma.sync's rate per busy block. Idle multiprocessors are modelled in addition. The share makes the optimizer
    // of the modern 124M model take the measured 13.8 ms; 3.6 ms of it are not attributed to kernels.
    {"polar_express", Engine::tiles, 0.25, 0.80, 17, "assumed: fitted to the whole optimizer on an H100"},
    {"normuon_scale", Engine::mma, 1, 0.60, 3, "assumed"},
    {"adamw_step", Engine::mma, 1, 0.98, 1, kInStep},
    {"muon_momentum", Engine::mma, 1, 0.80, 1, kPerLayer},
    {"muon_apply", Engine::mma, 1, 0.64, 1, kPerLayer},
    {"fill", Engine::mma, 1, 0.85, 1, "assumed"},
    {"scale", Engine::mma, 1, 0.85, 1, "assumed"},
    {"cast", Engine::mma, 1, 0.85, 1, "assumed"},
    {"norm_term", Engine::mma, 1, 0.36, 2, kPerLayer},
    {"sum", Engine::mma, 1, 0.80, 2, "assumed"},
    {"count_nonfinite", Engine::mma, 1, 0.80, 2, "assumed"},
    {"random_normal", Engine::mma, 1, 0.50, 1, "assumed"},
    {"random_uniform", Engine::mma, 1, 0.50, 1, "assumed"},
};
#define SPEEDRUN_NAME(name, Arguments) #name,
constexpr const char* kNames[] = {SPEEDRUN_EACH_OP(SPEEDRUN_NAME)};
#undef SPEEDRUN_NAME
constexpr KernelModel kOneKernel = {"", Engine::mma, 1, 0.80, 1, "assumed"};
constexpr KernelModel kNativeMatmul = {
    "matmul", Engine::tiles, 0.68, 0.55, 1, "measured on an H100: a large product; blocks counted"};

// Rate of our matmul by wgmma: 0.87 of the library's 0.93, assumed. Launches of each batch, with a share of those of A·A.
constexpr KernelModel kWgmmaPolarExpress = {
    "polar_express",
    Engine::wgmma_tiles,
    0.81,
    0.80,
    14,
    "assumed: 0.87 of the library's rate, tiles counted; not yet run"};

constexpr const char* kCounted = "assumed: matmuls and instructions counted; not yet run";
constexpr KernelModel kWgmmaAttention[] = {{"attention_forward", Engine::wgmma, 0.57, 0.80, 1, kCounted},
                                           {"attention_backward", Engine::wgmma, 0.36, 0.80, 3, kCounted}};

// Each multiply-add of a score loads two numbers from shared memory, and of a sum one: an eighth and a quarter of the rate
// without them. Four of seven matmuls of backward are counted.
constexpr const char* kPortable =
    "assumed: without tensor cores, loads of shared memory counted; not yet run";
constexpr KernelModel kPortableAttention[] = {
    {"attention_forward", Engine::portable, 0.17, 0.80, 1, kPortable},
    {"attention_backward", Engine::portable, 0.09, 0.80, 4, kPortable}};

// Engine::mma: fitted to the causal cases of records/gpu_checks, 512 to 8,192 tokens, each within 1.1%. Engine::wgmma: a
// tenth above the count of kernels/README.md. RotaryOfInputs, by the same rules: a tile takes 616 further instructions per warp
// with heads of 128 (679 of 96, 335 of 64; means of both kernels), 0.70 us. It reads 64 KiB of cosines and sines, and 4.5 KiB
// of rstd and positions. At the 64 bytes per clock of a multiprocessor's port to the L2 cache, they take 0.62 us.
constexpr const char* kBetween = "assumed: by matmuls, between the measured heads of 64 and 128";
constexpr AttentionTiming kAttention[] = {
    {"attention_forward", Engine::mma, {128, 128}, {32, 0}, 1.015, 4.84, kOneStrip},
    {"attention_backward", Engine::mma, {128, 128}, {32, 32}, 1.701, 6.93, kOneStrip},
    {"attention_forward", Engine::mma, {64, 128}, {32, 0}, 0.90, 4.10, kBetween},
    {"attention_backward", Engine::mma, {64, 128}, {32, 32}, 1.22, 6.00, kBetween},
    {"attention_forward", Engine::mma, {128, 64}, {64, 0}, 1.81, 4.10, kBetween},
    {"attention_backward", Engine::mma, {128, 64}, {32, 32}, 1.34, 6.00, kBetween},
    {"attention_forward", Engine::mma, {64, 64}, {64, 0}, 1.585, 3.35, kOneStrip},
    {"attention_backward", Engine::mma, {64, 64}, {64, 64}, 1.717, 5.06, kOneStrip},
    {"attention_forward", Engine::wgmma, {128, 128}, {128, 0}, 2.13, 1.24, kCounted},
    {"attention_backward", Engine::wgmma, {128, 128}, {64, 64}, 1.69, 1.38, kCounted, 1.46},
    {"attention_forward", Engine::wgmma, {96, 96}, {128, 0}, 1.93, 1.17, kCounted},
    {"attention_backward", Engine::wgmma, {96, 96}, {64, 64}, 1.48, 1.23, kCounted, 1.38},
    {"attention_forward", Engine::wgmma, {96, 128}, {128, 0}, 1.93, 1.24, kCounted},
    {"attention_backward", Engine::wgmma, {96, 128}, {64, 64}, 1.59, 1.32, kCounted, 1.38},
    {"attention_forward", Engine::wgmma, {64, 128}, {128, 0}, 1.74, 1.24, kCounted},
    {"attention_backward", Engine::wgmma, {64, 128}, {64, 64}, 1.30, 1.20, kCounted, 0.78},
    {"attention_forward", Engine::wgmma, {64, 64}, {128, 0}, 1.33, 1.03, kCounted},
    {"attention_backward", Engine::wgmma, {64, 64}, {64, 64}, 0.98, 1.06, kCounted, 0.78},
};
// Measured over modelled time of the cases with documents: 1.13 in forward, 1.08 in backward.
constexpr double kDocumentFactor = 1.11;
// Share of the memory time of a loss with 8-bit gradients, whose rows are read again from L2: assumed.
constexpr double kFp8Loss = 0.92;

// Operations on lists of tensors. Their shares were measured with a call per layer. Assumed for one call with all layers, which has
// one tail instead of many: less than the 0.98 of adamw_step, measured with large tensors.
constexpr int64_t kLongList = 256'000'000;  // bytes
constexpr double kLongListShare = 0.90;
bool is_list(std::string_view op) {
    return op == "muon_momentum" || op == "muon_apply" || op == "norm_term";
}

// Share of bytes_per_s of a call.
double memory_share(const OpCost& cost, const KernelModel& kernel) {
    constexpr double kBackwardOfTwo = 0.91;  // measured on an H100
    if (cost.loss.fp8) return kernel.memory * kFp8Loss;
    if (cost.bytes >= kLongList && is_list(cost.op)) return kLongListShare;
    if (cost.terms == 0 || cost.terms > 2) return kernel.memory;
    return std::string_view(cost.op) == "sum_norm_backward" ? kBackwardOfTwo : kernel.memory;
}

// Returns the time on this GPU: tiles follow the rate of matmuls per multiprocessor; the fixed time of a block is mostly
// latency and is assumed to be equal.
double attention_ms(const AttentionTiming& timing, const AttentionWork& work, const GpuModel& gpu,
                    bool rotary) {
    const GpuModel& h100 = gpu_models().front();
    const auto rate = [&](const GpuModel& of) {
        const double share = timing.engine == Engine::mma ? of.mma_share : 1;
        return of.bf16_flops_per_s * share / of.num_sms;
    };
    const double us = timing.tile_us * rate(h100) / rate(gpu) * work.tiles + timing.block_us * work.blocks,
                 rotary_us = rotary ? timing.rotary_us * work.blocks : 0;
    return (us * (work.visible < 1 ? kDocumentFactor : 1) + rotary_us) / gpu.num_sms * 1e-3;
}

// Output tiles of 128 x `columns` with inner dimension k.
struct Tiles {
    double count, k;
    double columns = kTile;
};

// Returns the time of these tiles in whole waves over the multiprocessors.
double waves_ms(const Tiles& tiles, double flops_per_s, int num_sms) {
    const double waves = std::ceil(tiles.count / num_sms);
    return waves * 2 * kTile * tiles.columns * tiles.k * num_sms / flops_per_s * 1e3;
}

double tiles_of(double n) {
    return std::ceil(n / kTile);
}

double triangle_of(double n) {  // tiles on and above the diagonal
    return tiles_of(n) * (tiles_of(n) + 1) / 2;
}

// Returns the time of an operation of Engine::tiles with its launcher's tiling (kernels/cuda/ops/matmul.cu,
// polar_express.cu).
double tiled_ms(const OpCost& cost, double flops_per_s, int num_sms) {
    const auto ms = [&](double blocks, double k) { return waves_ms({blocks, k}, flops_per_s, num_sms); };
    if (const auto [m, n, k] = cost.product.sizes; m > 0)
        return ms(tiles_of(static_cast<double>(m)) * tiles_of(static_cast<double>(n)),
                  static_cast<double>(k));
    double sum = 0;
    for (const op::ProductShape& batch : cost.batches) {
        const auto matrices = static_cast<double>(batch.sizes[0]), rows = static_cast<double>(batch.sizes[1]),
                   cols = static_cast<double>(batch.sizes[2]);
        const double side = std::min(rows, cols), length = std::max(rows, cols);
        sum += ms(matrices * triangle_of(side), length) + ms(matrices * triangle_of(side), side) +
               ms(matrices * tiles_of(side) * tiles_of(length), side);
    }
    return static_cast<double>(kPolarExpress.size()) * sum;
}

// As tiled_ms(), for the launches of polar_express_wgmma.cu: batches of one side share the launch of A·A.
double wgmma_tiled_ms(const OpCost& cost, double flops_per_s, int num_sms) {
    constexpr double kColumns = 2 * kTile;
    const auto ms = [&](double tiles, double k) {
        return waves_ms({tiles, k, kColumns}, flops_per_s, num_sms);
    };
    const auto triangle = [](double side) {  // a row of tiles has half of its number, and one
        const double rows = tiles_of(side), pairs = std::floor(rows / 2);
        return (pairs + 1) * (rows - pairs);
    };
    std::map<double, double> matrices_of_side;
    double sum = 0;
    for (const op::ProductShape& batch : cost.batches) {
        const auto matrices = static_cast<double>(batch.sizes[0]), rows = static_cast<double>(batch.sizes[1]),
                   cols = static_cast<double>(batch.sizes[2]);
        const double side = std::min(rows, cols), length = std::max(rows, cols);
        matrices_of_side[side] += matrices;
        sum += ms(matrices * triangle(side), length) +
               ms(matrices * tiles_of(rows) * std::ceil(cols / kColumns), side);
    }
    for (const auto& [side, matrices] : matrices_of_side) sum += ms(matrices * triangle(side), side);
    return static_cast<double>(kPolarExpress.size()) * sum;
}

}  // namespace

const std::vector<GpuModel>& gpu_models() {
    static const std::vector<GpuModel> kModels = {
        // Data sheet: 3.35 TB/s, 989.4 TFLOP/s bf16 (dense), 1978.9 fp8, 66.9 f32, 132 SMs, 80 GB. mma.sync: about 65%
        // of wgmma. f32 and the gap (1.35 us, over 2,800 in three steps): records/gpu_checks.
        {"h100", "NVIDIA H100 SXM 80GB", 3.0 * kTera, 798 * kTera, 2 * 798 * kTera, kF32OfH100, 0.65, true,
         132, 80, kGapOfH100, 450 * kLinkShare, true, kNvlink,
         "copy, matmuls in bf16 and f32 and gaps measured; mma.sync and fp8 assumed"},
        // Data sheet: 4.8 TB/s, 141 GB; otherwise as the H100.
        {"h200", "NVIDIA H200 SXM 141GB", 4.3 * kTera, 798 * kTera, 2 * 798 * kTera, kF32OfH100, 0.65, true,
         132, 141, kGapOfH100, 450 * kLinkShare, true, kNvlink,
         "copy measured by others; matmuls and gaps taken from the H100; mma.sync assumed"},
        // Data sheet: 2.039 TB/s, 312 TFLOP/s bf16 (dense), 19.5 f32, 108 SMs, 80 GB. mma.sync only.
        {"a100", "NVIDIA A100 SXM 80GB", 2.039 * kCopyShare * kTera, 312 * kProductShare * kTera, 0,
         19.5 * kProductShare * kTera, 1.0, false, 108, 80, 1.3, 300 * kLinkShare, true, kNvlink,
         "data sheet times an H100's shares; gaps assumed"},
        // Ada white paper: 1.008 TB/s, 165.2 TFLOP/s bf16 with f32 sums (dense), 330.3 fp8, 82.6 f32, 128 SMs, 24 GB.
        {"4090", "NVIDIA GeForce RTX 4090", 1.008 * kCopyShare * kTera, 165.2 * kProductShare * kTera,
         330.3 * kProductShare * kTera, 82.6 * kProductShare * kTera, 1.0, false, 128, 24, 1.0, 10, false,
         "PCIe 4.0, two sockets: 10 GB/s in NCCL's graph of 8 RTX 4090s (nccl-tests, issue 307)",
         "data sheet times an H100's shares; gaps assumed"},
        // Data sheet (HGX): 8 TB/s, 2,250 TFLOP/s bf16 (dense), 4,500 fp8, 75 f32, 148 SMs, 180 GB. mma.sync as fast per SM as
        // on an H100: assumed. No tcgen05 in our own kernels.
        {"b200", "NVIDIA B200 SXM 180GB", 8 * kCopyShare * kTera, 2250 * kProductShare * kTera,
         4500 * kProductShare * kTera, 75 * kProductShare * kTera, 0.32, false, 148, 180, kGapOfH100,
         900 * kLinkShare, true, kNvlink, "assumed: data sheet times an H100's shares"},
        // Blackwell white paper: 1.792 TB/s, 209.5 TFLOP/s bf16 with f32 sums (dense), 419 fp8, 104.8 f32, 170 SMs, 32 GB.
        {"5090", "NVIDIA GeForce RTX 5090", 1.792 * kCopyShare * kTera, 209.5 * kProductShare * kTera,
         419 * kProductShare * kTera, 104.8 * kProductShare * kTera, 1.0, false, 170, 32, 1.0, 28, false,
         "PCIe 5.0: 28 GB/s measured by others, all-reduce of 8 RTX 5090s (nccl, issue 1639)",
         "assumed: data sheet times an H100's shares"},
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

KernelModel kernel_model(std::string_view op, KernelChoice choice) {
    if (choice.native_matmul && op == "matmul") return kNativeMatmul;
    if (choice.wgmma_matmul && op == kWgmmaPolarExpress.op) return kWgmmaPolarExpress;
    for (const KernelModel& kernel : kPortableAttention)
        if (choice.portable_attention && op == kernel.op) return kernel;
    for (const KernelModel& kernel : kWgmmaAttention)
        if (choice.wgmma_attention && op == kernel.op) return kernel;
    for (KernelModel kernel : kKernels) {
        if (op != kernel.op) continue;
        kernel.wgmma_epilogue = choice.wgmma_matmul && (op == "matmul" || op == "scaled_matmul");
        return kernel;
    }
    for (const char* name : kNames) {
        if (op != name) continue;
        KernelModel kernel = kOneKernel;
        kernel.op = name;
        return kernel;
    }
    throw_internal("there is no operation {}", op);
}

const AttentionTiming* attention_timing(const OpCost& cost, DType compute_dtype, const KernelModel& kernel) {
    if (compute_dtype != DType::bf16) return nullptr;
    for (const AttentionTiming& timing : kAttention)
        if (std::string_view(cost.op) == timing.op && timing.engine == kernel.engine &&
            timing.widths == widths_of(cost.attention))
            return &timing;
    return nullptr;
}

ModelledCall model_call(const OpCost& cost, DType compute_dtype, const GpuModel& gpu,
                        const KernelModel& kernel, double share_of_bound, const AttentionWork& work) {
    if (cost.product.epilogue != op::EpilogueKind::none)
        return model_epilogue(cost, compute_dtype, gpu, kernel, share_of_bound);
    const double flops = static_cast<double>(cost.flops) * work.visible;
    const auto bytes = static_cast<double>(cost.bytes);
    const bool fp8 = std::string_view(cost.op) == "scaled_matmul";
    if (fp8 && gpu.fp8_flops_per_s == 0)
        throw_usage("{} does not multiply 8-bit numbers (fp8): set model's to null, or ask for another GPU",
                    gpu.title);
    const double rate = gpu.flops_per_s(fp8 ? DType::e4m3 : compute_dtype);
    ModelledCall call;
    const double compute_bound_ms = flops / rate * 1e3, memory_bound_ms = bytes / gpu.bytes_per_s * 1e3;
    call.bound_ms = std::max(compute_bound_ms, memory_bound_ms);
    call.compute_bound = compute_bound_ms > memory_bound_ms;
    const auto batches = static_cast<double>(std::max<size_t>(1, cost.batches.size()));
    call.gap_ms = batches * kernel.launches * gpu.launch_gap_us * 1e-3;
    if (share_of_bound > 0) {
        call.ms = call.bound_ms / share_of_bound + call.gap_ms;
        return call;
    }
    if (const AttentionTiming* const timing = attention_timing(cost, compute_dtype, kernel);
        timing && work.blocks > 0) {
        call.ms = std::max(attention_ms(*timing, work, gpu, cost.rotary),
                           memory_bound_ms / kernel.memory + call.gap_ms);
        return call;
    }
    const bool by_mma =
        (kernel.engine == Engine::mma || kernel.engine == Engine::tiles) && compute_dtype == DType::bf16;
    const double of_engine = kernel.engine == Engine::portable ? gpu.f32_flops_per_s
                             : by_mma                          ? rate * gpu.mma_share
                                                               : rate;
    const double reached = kernel.compute * of_engine;
    const double products_ms = kernel.engine == Engine::tiles ? tiled_ms(cost, reached, gpu.num_sms)
                               : kernel.engine == Engine::wgmma_tiles
                                   ? wgmma_tiled_ms(cost, reached, gpu.num_sms)
                                   : flops / reached * 1e3;
    call.ms = std::max(products_ms, memory_bound_ms / memory_share(cost, kernel)) + call.gap_ms;
    return call;
}

}  // namespace speedrun
