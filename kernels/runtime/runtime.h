// What a model runs on: a device, its operations and its streams. One of these per process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/metered_ops.h"

namespace speedrun {

struct RuntimeOptions {
    std::optional<DeviceKind> device;  // nothing: a GPU if there is one that this build can use
    std::optional<DType> precision;    // of computing, f32 or bf16; nothing: bf16 where the hardware has it
    int threads = 0;                   // of the CPU; 0: all cores
    int gpu = 0;                       // counted from 0
    CudaLibraries libraries = {};
    bool dependent_launch = false;  // of a GPU's kernels
    bool communicates = false;      // with other ranks: on streams of its own
    bool dry = false;               // allocate and run nothing (`plan`)
};

class Runtime {
  public:
    // Throws a usage error if the device or the precision is not to be had.
    explicit Runtime(const RuntimeOptions& options);

    Device& device() { return *device_; }
    Ops& ops() { return metered_ ? *metered_ : *ops_; }
    // From here on ops() also notes what it is asked for, once started: call before anything holds ops().
    MeteredOps& meter();
    Stream& compute() { return *compute_; }
    Stream& optimizer() { return *optimizer_; }
    // Alone, the optimizer's.
    Stream& reduce() { return reduce_ ? *reduce_ : *optimizer_; }
    Stream& gather() { return gather_ ? *gather_ : *optimizer_; }
    // Values travel between ranks here, beside computing; it is compute() where nobody communicates.
    Stream& exchange() { return exchange_ ? *exchange_ : *compute_; }
    // Device to host while training goes on: checkpoints.
    Stream& copy() { return *copy_; }
    DType real() const { return real_; }       // the compute type
    bool has_fp8() const { return has_fp8_; }  // does it multiply 8-bit numbers?
    int threads() const { return threads_; }
    // "bf16 on 2 threads", "bf16 on NVIDIA H100 80GB HBM3".
    const std::string& description() const { return description_; }
    // What the user should know of the choices made, one sentence each; those of the operations grow with
    // every new shape.
    std::vector<std::string> notes() const;
    void synchronize();  // all streams; rethrows the first of their errors
    // Synchronizes without errors: for destructors, before memory goes that enqueued work still uses.
    void drain() noexcept;

  private:
    void make_cpu(const RuntimeOptions& options);
    void make_cuda(const RuntimeOptions& options);

    DType real_ = DType::f32;
    bool has_fp8_ = true;
    int threads_ = 0;
    std::string description_;
    std::vector<std::string> notes_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    std::unique_ptr<MeteredOps> metered_;
    std::unique_ptr<Stream> compute_, exchange_, reduce_, optimizer_, gather_,
        copy_;  // end before what they use
};

}  // namespace speedrun
