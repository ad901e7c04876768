// What a model runs on: a device, its operations and its streams. One of these per process.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace speedrun {

struct RuntimeOptions {
    std::string device = "auto";     // "auto" | "cpu" | "cuda"
    std::string precision = "auto";  // "auto" | "f32" | "bf16"
    int threads = 0;                 // of the CPU; 0: all cores
    bool dry = false;                // allocate and run nothing (`plan`)
};

class Runtime {
  public:
    // Throws a usage error if the device or the precision is not to be had.
    explicit Runtime(const RuntimeOptions& options);

    Device& device() { return *device_; }
    Ops& ops() { return *ops_; }
    Stream& compute() { return *compute_; }
    Stream& optimizer() { return *optimizer_; }
    DType real() const { return real_; }  // the compute type
    int threads() const { return threads_; }
    void synchronize();  // all streams; rethrows the first of their errors
    // The same without errors: for destructors, before memory goes that enqueued work still uses.
    void drain() noexcept;

  private:
    DType real_;
    int threads_ = 0;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    std::unique_ptr<Stream> compute_, optimizer_;  // end before what they use
};

}  // namespace speedrun
