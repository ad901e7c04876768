#include "kernels/cuda/device/gpu_clocks.h"

#include <fmt/format.h>

#include "kernels/device/shared_library.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

constexpr int kNvmlSuccess = 0;

}  // namespace

GpuClocks::GpuClocks(const std::string& gpu, const NvmlOptions& options) : gpu_(gpu), every_(options.every) {
    SharedLibrary nvml(options.library);
    int (*init)() = nullptr;
    int (*find_gpu)(const char*, void**) = nullptr;
    int (*shutdown)() = nullptr;
    nvml.find(init, "nvmlInit_v2");
    nvml.find(find_gpu, "nvmlDeviceGetHandleByPciBusId_v2");
    nvml.find(shutdown, "nvmlShutdown");
    nvml.find(error_text_, "nvmlErrorString");
    nvml.find(get_reasons_, "nvmlDeviceGetCurrentClocksEventReasons");
    // Name in drivers before 535.
    if (!get_reasons_) nvml.find(get_reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    if (!init || !find_gpu || !shutdown || !error_text_ || !get_reasons_) {
        problem_ = nvml.problem();
        return;
    }
    if (const int code = init(); code != kNvmlSuccess) {
        problem_ = fmt::format("nvmlInit_v2: {}", error_text_(code));
        return;
    }
    shutdown_ = shutdown;
    const std::string function = gpu_ + ".0";  // domain:bus:device.function
    if (const int code = find_gpu(function.c_str(), &device_); code != kNvmlSuccess) {
        device_ = nullptr;
        problem_ = fmt::format("nvmlDeviceGetHandleByPciBusId_v2 of {}: {}", function, error_text_(code));
    }
}

GpuClocks::~GpuClocks() {
    stop();
    if (shutdown_) (void)shutdown_();  // failures are ignored at shutdown
}

void GpuClocks::begin() {
    stop();
    seen_.reset();
    if (!device_) return;
    problem_.clear();
    read();
    stopping_ = false;
    thread_ = start_thread("clocks of the GPU", [this] {
        std::unique_lock lock(mutex_);
        while (!wake_.wait_for(lock, every_, [this] { return stopping_; })) read();
    });
}

std::optional<std::set<std::string>> GpuClocks::end() {
    stop();
    if (!device_) return std::nullopt;
    read();
    if (!seen_) return std::nullopt;
    std::set<std::string> names;
    for (const ClockReason& reason : kClockReasons)
        if (*seen_ & reason.bit) names.insert(reason.name);
    return names;
}

void GpuClocks::read() {
    unsigned long long bits = 0;
    const int code = get_reasons_(device_, &bits);
    if (code == kNvmlSuccess)
        seen_ = seen_.value_or(0) | bits;
    else if (problem_.empty())
        problem_ = fmt::format("NVML, reasons for the clocks of {}: {}", gpu_, error_text_(code));
}

void GpuClocks::stop() {
    if (!thread_.joinable()) return;
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

}  // namespace speedrun
