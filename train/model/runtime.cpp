#include "train/model/runtime.h"

#include <exception>

#include "kernels/cpu/cpu_device.h"

namespace speedrun {

Runtime::Runtime(const RuntimeOptions& options) {
    if (options.device == "cuda")
        throw_usage("device: 'cuda' was asked for, but this build has no CUDA backend; use 'cpu' or 'auto'");
    if (options.precision == "bf16" && !cpu_has_bf16()) {
        throw_usage(
            "precision: 'bf16' was asked for, but this processor has no avx512_bf16; use 'f32' or 'auto'");
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
    std::exception_ptr first;
    for (Stream* stream : {compute_.get(), optimizer_.get()}) {  // all of them, even if one has failed
        try {
            stream->synchronize();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    }
    if (first) std::rethrow_exception(first);
}

void Runtime::drain() noexcept {
    try {
        synchronize();
    } catch (...) {  // somebody is unwinding already, or has stopped to care
    }
}

}  // namespace speedrun
