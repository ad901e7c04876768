#include "kernels/runtime/runtime.h"
#include "kernels/cuda/device/cuda_info.h"

#include <exception>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/device/host_limits.h"

namespace speedrun {

namespace {

constexpr int kAda = 89;    // 10 × first compute capability with FP8
constexpr int kAmpere = 8;  // first compute capability with bf16 tensor cores

}  // namespace

Runtime::Runtime(const RuntimeOptions& options) : wgmma_attention_(options.wgmma_attention) {
    bool cuda = options.device == DeviceKind::cuda;
    if (!options.device) {
        const CudaInfo info = query_cuda();
        cuda = info.unavailable.empty();
        if (!cuda && info.runtime_version > 0)  // no note in a build without CUDA
            notes_.push_back(fmt::format("no GPU ({}): running on the CPU", info.unavailable));
    }
    if (cuda) {
        make_cuda(options);
    } else {
        make_cpu(options);
    }
    compute_ = device_->create_stream("compute");
    optimizer_ = device_->create_stream("optimizer");
    copy_ = device_->create_stream("copy");
    if (!options.communicates) return;
    // High priority: other ranks wait for this work.
    exchange_ = device_->create_stream("exchange", StreamPriority::high);
    reduce_ = device_->create_stream("reduce", StreamPriority::high);
    gather_ = device_->create_stream("gather", StreamPriority::high);
}

void Runtime::make_cpu(const RuntimeOptions& options) {
    const bool bf16 = options.precision.value_or(cpu_has_bf16() ? DType::bf16 : DType::f32) == DType::bf16;
    if (bf16 && !cpu_has_bf16()) {
        notes_.push_back(fmt::format(
            "bf16 at CPU level {}: the same values and rounding as with bf16 instructions, by f32 products; "
            "f32 is faster here",
            name_of(cpu_isa())));
    }
    compute_dtype_ = bf16 ? DType::bf16 : DType::f32;
    auto cpu = std::make_unique<CpuDevice>(options.threads, options.dry);
    threads_ = cpu->num_threads();
    if (const std::string note = threads_note(host_threads(), threads_); !note.empty())
        notes_.push_back(note);
    device_ = std::move(cpu);
    ops_ = make_cpu_ops(*device_);
    description_ = fmt::format("{} on {} threads, {}", name_of(compute_dtype_), threads_, name_of(cpu_isa()));
}

void Runtime::make_cuda(const RuntimeOptions& options) {
    CudaBackend backend = make_cuda_backend({.gpu = options.gpu,
                                             .dry = options.dry,
                                             .libraries = options.libraries,
                                             .dependent_launch = options.dependent_launch});
    const CudaInfo info = query_cuda();  // a dry device on a machine without GPUs has none
    const bool known = options.gpu < static_cast<int>(info.gpus.size());
    const bool has_bf16 = !known || info.gpus[options.gpu].major >= kAmpere;
    if (options.precision == DType::bf16 && !has_bf16) {
        throw_usage("precision: 'bf16' was asked for, but {} has no bf16 tensor cores; use 'f32' or 'auto'",
                    info.gpus[options.gpu].name);
    }
    if (known) has_fp8_ = 10 * info.gpus[options.gpu].major + info.gpus[options.gpu].minor >= kAda;
    compute_dtype_ = options.precision != DType::f32 && has_bf16 ? DType::bf16 : DType::f32;
    device_ = std::move(backend.device);
    ops_ = std::move(backend.ops);
    for (std::string& note : backend.notes) notes_.push_back(std::move(note));
    description_ =
        fmt::format("{} on {}", name_of(compute_dtype_), known ? info.gpus[options.gpu].name : "a GPU");
}

MeteredOps& Runtime::meter() {
    if (!metered_) metered_ = std::make_unique<MeteredOps>(*ops_, device_.get());
    return *metered_;
}

std::vector<std::string> Runtime::notes() const {
    std::vector<std::string> all = notes_;
    for (std::string& note : device_->notes()) all.push_back(std::move(note));
    for (std::string& note : ops_->notes()) all.push_back(std::move(note));
    return all;
}

void Runtime::synchronize() {
    std::exception_ptr first;
    for (Stream* stream :
         {compute_.get(), exchange_.get(), reduce_.get(), optimizer_.get(), gather_.get(), copy_.get()}) {
        if (!stream) continue;
        try {  // all streams, even if one has failed
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
    } catch (...) {  // the caller is already unwinding or ignores errors
    }
}

}  // namespace speedrun
