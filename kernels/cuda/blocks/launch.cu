// Kernel launch on a GPU. The executor of tests/simt has its own.
#include "kernels/cuda/blocks/launch.h"

#include <nvtx3/nvToolsExt.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/kernel_name.h"

namespace speedrun {

namespace {

// Name for traces and profilers, with static lifetime: "attention_forward" for
// attention_forward_kernel<Bf16>, "adamw.Step" for map_kernel<4, Step<Bf16>> launched by adamw.cu.
const char* label_of(const void* kernel, const LaunchSite& site) {
    static std::mutex mutex;  // ranks may be threads of one process
    static std::unordered_map<const void*, std::string> labels;
    const std::lock_guard lock(mutex);
    const auto known = labels.find(kernel);
    if (known != labels.end()) return known->second.c_str();
    const char* mangled = nullptr;
    std::string label = "kernel";
    if (cudaFuncGetName(&mangled, kernel) == cudaSuccess && mangled) {
        label = short_kernel_name(mangled);
        for (const char* part : {"attention::", "cuda::"})
            for (size_t at; (at = label.find(part)) != std::string::npos;) label.erase(at, std::strlen(part));
        if (label.rfind("map_kernel<", 0) == 0) {
            const size_t body = label.find(", ") + 2;
            const std::string file = std::filesystem::path(site.file).stem().string();
            label = file + "." + label.substr(body);
        }
        label = label.substr(0, label.find('<'));
        if (const size_t at = label.rfind("_kernel"); at != std::string::npos) label.erase(at);
    }
    return labels.emplace(kernel, std::move(label)).first->second.c_str();
}

}  // namespace

LaunchTarget begin_launch(const LaunchSite& site, const void* kernel) {
    auto& stream = static_cast<CudaStream&>(site.stream);
    if (stream.dry()) return {nullptr, true, false};
    const char* const label = label_of(kernel, site);
    nvtxRangePushA(label);  // for profilers; almost free without one
    stream.begin_span(label);
    return {stream.handle(), false, stream.device().dependent_launch_enabled()};
}

void end_launch(const LaunchSite& site) {
    static_cast<CudaStream&>(site.stream).end_span();
    nvtxRangePop();
}

int64_t max_shared_memory(Stream& stream) {
    return static_cast<CudaStream&>(stream).device().max_shared_memory();
}

int64_t multiprocessors(Stream& stream) {
    return static_cast<CudaStream&>(stream).device().multiprocessors();
}

void allow_shared_memory(const void* kernel, int64_t bytes, const LaunchSite& site) {
    constexpr double kKiB = 1 << 10;
    if (const int64_t limit = max_shared_memory(site.stream); bytes > limit) {
        throw_usage(
            "{}, launched at {}:{}, needs {:.1f} KiB of shared memory; this GPU lets a block have {:.1f}",
            label_of(kernel, site), site.file, site.line, static_cast<double>(bytes) / kKiB,
            static_cast<double>(limit) / kKiB);
    }
    static std::mutex mutex;
    static std::map<std::pair<int, const void*>, int64_t> allowed;  // per device (context)
    const int device = static_cast<CudaStream&>(site.stream).device().index();
    const std::lock_guard lock(mutex);
    int64_t& most = allowed[{device, kernel}];
    if (bytes <= most) return;
    check_launch(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        kernel, site);
    most = bytes;
}

void check_launch(cudaError_t error, const void* kernel, const LaunchSite& site) {
    if (error == cudaSuccess) return;
    if (error == cudaErrorNoKernelImageForDevice) {
        throw_usage(
            "this build holds no code for this GPU; configure it with -DSPEEDRUN_CUDA_ARCHITECTURES=native, "
            "or with the preset cuda for every supported GPU");
    }
    const char* name = nullptr;
    if (cudaFuncGetName(&name, kernel) != cudaSuccess || !name) name = "a kernel";
    throw_internal("{}, launched at {}:{} ({}): {}: {}", name, site.file, site.line, site.function,
                   cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace speedrun
