#include "train/model/runtime.h"

#include "kernels/cpu/cpu_device.h"

namespace speedrun {

Runtime::Runtime(const RuntimeOptions& options) {
    if (options.device == "cuda") throw_usage("device: 'cuda' was asked for, but this build has no CUDA backend; use 'cpu' or 'auto'");
    if (options.precision == "bf16" && !cpu_has_bf16()) {
        throw_usage("precision: 'bf16' was asked for, but this processor has no avx512_bf16; use 'f32' or 'auto'");
    }
    const bool bf16 = options.precision != "f32" && cpu_has_bf16();
    real_ = bf16 ? DType::bf16 : DType::f32;
    auto cpu = std::make_unique<CpuDevice>(options.threads, options.dry);
    threads_ = cpu->num_threads();
    device_ = std::move(cpu);
    ops_ = make_cpu_ops(*device_);
    compute_ = device_->create_stream("compute");
    optimizer_ = device_->create_stream("optimizer");
}

void Runtime::synchronize() {
    compute_->synchronize();
    optimizer_->synchronize();
}

}  // namespace speedrun
