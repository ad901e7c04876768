// Reasons for which a GPU reduces its clocks, from NVML: a library of the driver, loaded at run time.
// Compiled in every build.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace speedrun {

struct ClockReason {
    uint64_t bit;  // nvmlClocksEventReason*, in older headers nvmlClocksThrottleReason*
    const char* name;
    bool marks;  // true: marks the times of the run
};

// Source: NVML API Reference Guide, "NvmlClocksEventReasons". Hardware reasons cut the clocks to a half or
// less. The thermal reason of the software keeps temperatures within their limits. SwPowerCap means that the
// clocks are chosen for the set power limit. An H100 is at that limit in large matmuls, so the reason is
// normal under load and marks no run. Idle, application clocks, display clocks and sync boost are no
// throttling and are left out. HwSlowdown may also be set during a change of clocks; it marks the run, since
// NVML does not separate the two.
inline constexpr std::array<ClockReason, 5> kClockReasons = {{{0x04, "sw_power_cap", false},
                                                              {0x08, "hw_slowdown", true},
                                                              {0x20, "sw_thermal", true},
                                                              {0x40, "hw_thermal", true},
                                                              {0x80, "hw_power_brake", true}}};

struct NvmlOptions {
    std::string library = "libnvidia-ml.so.1";
    std::chrono::milliseconds every{1000};  // interval of readings
};

class GpuClocks {
  public:
    // gpu: gpu_identity(). Without NVML nothing is read.
    GpuClocks(const std::string& gpu, const NvmlOptions& options);
    ~GpuClocks();
    GpuClocks(const GpuClocks&) = delete;
    GpuClocks& operator=(const GpuClocks&) = delete;

    const std::string& gpu() const { return gpu_; }
    // Discards earlier readings, reads once, then reads at intervals on a thread that sleeps in between.
    void begin();
    // Ends the thread, reads once more, and returns the names of all reasons since begin(); nullopt: no
    // reading succeeded.
    std::optional<std::set<std::string>> end();
    // First failure; empty: none. Must not be called between begin() and end().
    const std::string& problem() const { return problem_; }

  private:
    void read();
    void stop();

    const std::string gpu_;
    const std::chrono::milliseconds every_;
    int (*shutdown_)() = nullptr;  // null: NVML was not initialized
    int (*get_reasons_)(void*, unsigned long long*) = nullptr;
    const char* (*error_text_)(int) = nullptr;
    void* device_ = nullptr;  // null: no readings
    std::string problem_;
    std::optional<uint64_t> seen_;
    std::mutex mutex_;  // guards stopping_; other members belong to the thread while it runs
    std::condition_variable wake_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace speedrun
