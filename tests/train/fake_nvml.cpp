// build: in fake_nvml
#include "tests/train/fake_nvml.h"

#include <cstring>

namespace {

constexpr int kNotFound = 6;

int read_reasons(void* gpu, unsigned long long* bits) {
    auto& nvml = *fake_nvml();
    ++nvml.reads;
    *bits = *static_cast<std::atomic<unsigned long long>*>(gpu);
    return nvml.fails;
}

}  // namespace

extern "C" {

speedrun::FakeNvml* fake_nvml() {
    static speedrun::FakeNvml nvml;
    return &nvml;
}

int nvmlInit_v2() {
    ++fake_nvml()->open;
    ++fake_nvml()->inits;
    return 0;
}

int nvmlShutdown() {
    --fake_nvml()->open;
    return 0;
}

const char* nvmlErrorString(int code) {
    return code == kNotFound ? "Not Found" : "GPU is lost";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** gpu) {
    for (size_t i = 0; i < fake_nvml()->reasons.size(); ++i) {
        if (std::strcmp(bus_id, i == 0 ? "00000000:00:00.0" : "00000000:01:00.0") != 0) continue;
        *gpu = &fake_nvml()->reasons[i];
        return 0;
    }
    return kNotFound;
}

#ifdef FAKE_NVML_BEFORE_535
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* bits) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* gpu, unsigned long long* bits) {
#endif
    return read_reasons(gpu, bits);
}
}
