// Models the time of operations on a GPU that is not present. The inputs are the GPU's reachable peaks (bytes and FLOPs
// per second) and the share of them that each operation's kernels reach. Every figure names its source; figures without
// a measurement on a real GPU are marked "assumed". Goals: the distribution of a step's time, and the gain of a change.
// Non-goals: waves and caches of library matmuls, clocks under load.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/device/dtype.h"
#include "kernels/ops/attention_tiles.h"
#include "kernels/ops/metered_ops.h"

namespace speedrun {

struct GpuModel {
    const char *name, *title;  // "h100", the name on the command line; NVIDIA's name
    double bytes_per_s;        // large copy, read and written
    double bf16_flops_per_s;   // large matmul by the library, f32 sums
    double fp8_flops_per_s;    // as above, in fp8; 0: not supported
    double f32_flops_per_s;    // as above, in f32 (no TF32: CUBLAS_COMPUTE_32F)
    double mma_share;          // share of bf16_flops_per_s that mma.sync, used by our own kernels, can reach
    bool has_wgmma;            // instructions of compute capability 9.0
    int num_sms;
    int memory_gb;         // 10^9 bytes
    double launch_gap_us;  // gap between kernels inside a CUDA graph
    double link_gb_s;      // out of one GPU to the others of its host
    bool has_nvlink;       // false: the link is PCIe
    const char* link_source;
    const char* source;  // source of the rates

    double flops_per_s(DType type) const {
        if (is_fp8(type)) return fp8_flops_per_s;
        return type == DType::bf16 ? bf16_flops_per_s : f32_flops_per_s;
    }
};

const std::vector<GpuModel>& gpu_models();
// Throws a usage error that lists the known names if the name is unknown.
const GpuModel& find_gpu_model(std::string_view name);

// Implementation of an operation's matmuls.
enum class Engine : uint8_t {
    library,      // cuBLASLt
    wgmma,        // own kernels for compute capability 9.0
    mma,          // own kernels: mma.sync in bf16, multiply-adds in f32
    tiles,        // as mma, timed in whole waves of blocks with 128 x 128 outputs
    wgmma_tiles,  // as wgmma, timed in whole waves of blocks with 128 x 256 outputs
    portable,     // own kernels: multiply-adds in f32 for any type
};

// Share of its GPU's rates that an operation reaches.
struct KernelModel {
    const char* op;
    Engine engine;
    double compute;  // share of the engine's rate
    double memory;   // share of bytes_per_s
    int launches;    // kernels per call
    const char* source;
    bool wgmma_epilogue = false;  // our kernel runs matmuls with an epilogue where it wins (epilogue_model.h)
};
// Selected kernels: cuda.products is "hand"; cuda.attention is "wgmma", cuda.products is "wgmma", on a GPU that has it, in
// bf16. portable_attention: bf16 with widths of heads that only the portable kernels support.
struct KernelChoice {
    bool native_matmul = false, wgmma_attention = false, wgmma_matmul = false, portable_attention = false;
};
// Throws an internal error for an operation that is not in SPEEDRUN_EACH_OP.
KernelModel kernel_model(std::string_view op, KernelChoice choice = {});

// Attention in bf16: a multiprocessor takes tile_us per tile and block_us per block, on an H100. rotary_us: further time per
// block with RotaryOfInputs.
struct AttentionTiming {
    const char* op;
    Engine engine;
    HeadWidths widths;
    AttentionTiling tiling;
    double tile_us, block_us;
    const char* source;
    double rotary_us = 0;
};
// Returns null for operations, types and widths of heads without a kernel of tiles.
const AttentionTiming* attention_timing(const OpCost& cost, DType compute_dtype, const KernelModel& kernel);

struct ModelledCall {
    double bound_ms = 0;  // the larger of FLOPs and minimum bytes over the GPU's rates
    double ms = 0;        // the larger of compute and memory time at the kernel's shares, plus launch gaps
    double gap_ms = 0;    // gaps included in ms
    bool compute_bound = false;  // bound_ms is set by compute
};
// share_of_bound: measured share of the bound for this operation; 0: not measured, use the kernel's shares. work: of an
// attention call; its tiles determine the time if there is an attention_timing().
ModelledCall model_call(const OpCost& cost, DType compute_dtype, const GpuModel& gpu,
                        const KernelModel& kernel, double share_of_bound = 0, const AttentionWork& work = {});

}  // namespace speedrun
