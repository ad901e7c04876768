#include "kernels/cuda/device/graph_waits.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kernels/cuda/device/gpu_interop.h"

namespace speedrun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatched(10);  // a thousand times the duration of the graph's work
constexpr std::chrono::seconds kLimit(10);
constexpr std::chrono::microseconds kPollInterval(50);

bool completes(const Event& event, Clock::duration limit) {
    const auto until = Clock::now() + limit;
    while (!event.complete()) {
        if (Clock::now() > until) return false;
        std::this_thread::sleep_for(kPollInterval);
    }
    return true;
}

}  // namespace

std::string find_graph_wait_fault(Device& device) {
    std::atomic<bool> open = true;
    const HostBuffer source(device, sizeof(int32_t));
    const Buffer target(device, "test of graphs", MemoryCategory::workspace, source.bytes());
    const auto gate = device.create_stream("gate"), tested = device.create_stream("graph");
    const auto opened = device.create_event(), passed = device.create_event();
    const auto close_and_record = [&] {
        submit_to_gpu_stream(*gate, "gate", [&open] {
            while (!open) std::this_thread::sleep_for(kPollInterval);
        });
        gate->record(*opened);
    };
    const auto ends = [&] {
        open = true;
        if (completes(*passed, kLimit)) return;
        std::fputs(
            "error: a CUDA graph still waits for an event that has completed; this driver's graphs cannot be "
            "used: --set cuda.graph=false\n",
            stderr);
        std::_Exit(static_cast<int>(ExitCode::usage));
    };
    close_and_record();
    const auto graph = device.capture_graph(*tested, [&] {
        tested->wait(*opened);
        device.copy(target.data(), source.as<void>(), source.bytes(), *tested);
    });
    graph->launch(*tested);  // the first launch also uploads the graph
    tested->record(*passed);
    ends();

    open = false;
    close_and_record();
    graph->launch(*tested);
    tested->record(*passed);
    const bool early = completes(*passed, kWatched);
    ends();
    gate->synchronize();
    return early ? "a CUDA graph does not wait for an event that was recorded after it" : "";
}

}  // namespace speedrun
