// Fake libnvidia-ml.so.1: a host with the GPUs 00000000:00:00.0 and 00000000:01:00.0. The test sets their clock
// throttle reasons.
#pragma once

#include <array>
#include <atomic>

namespace speedrun {

struct FakeNvml {
    std::array<std::atomic<unsigned long long>, 2> reasons = {};  // one bitmask per GPU
    std::atomic<int> reads = 0;
    std::atomic<int> open = 0, inits = 0;  // nvmlInit_v2 calls without nvmlShutdown; all calls
    std::atomic<int> fails = 0;            // return code of each reading; 0: success
};

}  // namespace speedrun

// Looked up by dlsym.
extern "C" speedrun::FakeNvml* fake_nvml();
