// Shows that a missing wait between two streams is detected on a machine without a GPU:
//   missing_wait_demo wait   orders them by an event: silent under ThreadSanitizer, exit 0
//   missing_wait_demo race   does not: ThreadSanitizer reports a data race
// The racing consumer is enqueued long after the producer has finished, so the results are correct in both
// cases. ThreadSanitizer reports the missing order itself.
#include <fmt/core.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_device.h"

namespace {

int demo(bool with_wait) {
    using namespace speedrun;
    constexpr int kCount = 4096;
    constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(int));
    std::vector<int> source(kCount), destination(kCount);
    for (int i = 0; i < kCount; ++i) source[static_cast<size_t>(i)] = i;

    CpuDevice device(1);
    const Buffer buffer(device, "shared", MemoryCategory::workspace, kBytes);
    const auto produced = device.create_event();
    const auto producer = device.create_stream("producer"), consumer = device.create_stream("consumer");

    device.copy(buffer.data(), source.data(), kBytes, *producer);
    if (with_wait) {
        producer->record(*produced);
        consumer->wait(*produced);
    }
    // Sleeping orders the two in time, but not in the memory model: the producer's locks are not acquired
    // afterwards.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    device.copy(destination.data(), buffer.data(), kBytes, *consumer);
    consumer->synchronize();
    producer->synchronize();

    const bool same = source == destination;
    fmt::print("{}: {}\n", with_wait ? "wait" : "race", same ? "all numbers arrived" : "numbers were lost");
    return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view mode = argc == 2 ? argv[1] : "";
    if (mode != "wait" && mode != "race") {
        fmt::print(stderr, "usage: missing_wait_demo wait|race\n");
        return 2;
    }
    return demo(mode == "wait");
}
