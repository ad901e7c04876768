// How long an operation would take on a GPU that is not here, modelled: what the GPU reaches (bytes and
// products per second), and for each operation which share of that its kernels reach. Every figure names its
// source; one that no report of a real card stands behind is marked "assumed". Goals: to say where a step's
// time would go, and what a change would gain. Non-goals: waves and caches of library products, clocks under
// load.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/device/dtype.h"
#include "kernels/ops/metered_ops.h"

namespace speedrun {

struct GpuModel {
    const char *name, *title;  // "h100", as one asks for it; what NVIDIA calls it
    double bytes_per_s;        // of a large copy, read and written
    double bf16_flops_per_s;   // of a large product by the library, sums in f32
    double fp8_flops_per_s;    // the same of 8-bit numbers; 0: it has none
    double f32_flops_per_s;    // the same in f32 (no TF32: cuBLASLt is asked for CUBLAS_COMPUTE_32F)
    double mma_share;  // of bf16_flops_per_s, what mma.sync, which our own kernels are made of, can reach
    bool has_wgmma;    // instructions of compute capability 9.0
    int num_sms;
    int memory_gb;         // 10^9 bytes
    double launch_gap_us;  // from the end of a kernel to the begin of the next, inside a CUDA graph
    const char* source;    // of the rates

    double flops_per_s(DType type) const {
        if (is_fp8(type)) return fp8_flops_per_s;
        return type == DType::bf16 ? bf16_flops_per_s : f32_flops_per_s;
    }
};

const std::vector<GpuModel>& gpu_models();
// Usage error, naming those known, if there is none of this name.
const GpuModel& find_gpu_model(std::string_view name);

// What makes an operation's products, if it has any.
enum class Engine : uint8_t {
    library,  // cuBLASLt
    wgmma,    // our own kernels for compute capability 9.0
    mma,      // our own kernels: mma.sync in bf16, multiply-adds in f32
    tiles,    // the same, and the time is that of whole waves of blocks of 128 x 128 results
};

// How near to its GPU's rates an operation comes.
struct KernelModel {
    const char* op;
    Engine engine;
    double compute;  // share of the engine's rate
    double memory;   // share of bytes_per_s
    int launches;    // of kernels by a call
    const char* source;
};
// Which kernels serve where there are several: cuda.products is "hand"; cuda.attention is "wgmma", on a GPU that has
// it, in bf16.
struct KernelChoice {
    bool hand_products = false, wgmma_attention = false;
};
// Internal error for an operation that is not in SPEEDRUN_EACH_OP.
KernelModel kernel_model(std::string_view op, KernelChoice choice = {});

struct ModelledCall {
    double floor_ms = 0;  // the larger of FLOPs and least bytes over the GPU's rates
    double ms = 0;        // the slower of products and memory at the kernel's shares, and its launch gaps
    double gap_ms = 0;    // of that, the gaps
    bool compute_bound = false;  // the floor is
};
// share_of_floor: what a report of such a card has measured of this operation; 0: nothing, the kernel's
// shares hold.
ModelledCall model_call(const OpCost& cost, DType real, const GpuModel& gpu, const KernelModel& kernel,
                        double share_of_floor = 0);

}  // namespace speedrun
