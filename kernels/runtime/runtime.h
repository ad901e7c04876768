// Runtime of a model: a device, its operations and its streams. One per process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/metered_ops.h"

namespace speedrun {

struct RuntimeOptions {
    std::optional<DeviceKind> device;  // nullopt: a GPU if this build can use one
    std::optional<DType> precision;    // compute type, f32 or bf16; nullopt: bf16 if the hardware has it
    int threads = 0;                   // CPU threads; 0: all cores
    int gpu = 0;                       // index from 0
    CudaLibraries libraries = {};
    bool dependent_launch = false;  // GPU kernels begin early
    bool communicates = false;      // with other ranks: creates streams for it
    bool dry = false;               // allocate and run nothing (`plan`)
    bool wgmma_attention = false;   // fuses_rotary() as with cuda.attention "wgmma", on any device
};

class Runtime {
  public:
    // Throws a usage error if the device or the precision is not available.
    explicit Runtime(const RuntimeOptions& options);

    Device& device() { return *device_; }
    Ops& ops() { return metered_ ? *metered_ : *ops_; }
    // ops() then also meters each call, once started. Call it before any object holds ops().
    MeteredOps& meter();
    Stream& compute() { return *compute_; }
    Stream& optimizer() { return *optimizer_; }
    // Without communication, the optimizer's stream.
    Stream& reduce() { return reduce_ ? *reduce_ : *optimizer_; }
    Stream& gather() { return gather_ ? *gather_ : *optimizer_; }
    // Communication between ranks, overlapped with compute; without communication, the compute stream.
    Stream& exchange() { return exchange_ ? *exchange_ : *compute_; }
    // Copies to the host during training: checkpoints.
    Stream& copy() { return *copy_; }
    DType compute_dtype() const { return compute_dtype_; }  // the compute type
    bool has_fp8() const { return has_fp8_; }               // true if it multiplies FP8
    int threads() const { return threads_; }
    // As Ops::fuses_rotary(), in the compute type.
    bool fuses_rotary(HeadWidths widths) const {
        return wgmma_attention_ ? wgmma_fuses_rotary(widths, compute_dtype_)
                                : ops_->fuses_rotary(widths, compute_dtype_);
    }
    // "bf16 on 2 threads", "bf16 on NVIDIA H100 80GB HBM3".
    const std::string& description() const { return description_; }
    // Notes on the choices made, one sentence each. Operations may add notes for new shapes.
    std::vector<std::string> notes() const;
    void synchronize();  // all streams; rethrows their first error
    // Synchronizes and ignores errors: for destructors, before memory of enqueued work is freed.
    void drain() noexcept;

  private:
    void make_cpu(const RuntimeOptions& options);
    void make_cuda(const RuntimeOptions& options);

    DType compute_dtype_ = DType::f32;
    bool has_fp8_ = true;
    const bool wgmma_attention_;
    int threads_ = 0;
    std::string description_;
    std::vector<std::string> notes_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    std::unique_ptr<MeteredOps> metered_;
    std::unique_ptr<Stream> compute_, exchange_, reduce_, optimizer_, gather_,
        copy_;  // destroyed before their device
};

}  // namespace speedrun
