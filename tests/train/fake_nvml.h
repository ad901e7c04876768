// A stand-in for libnvidia-ml.so.1: a host with the GPUs 00000000:00:00.0 and 00000000:01:00.0, with reasons for reduced clocks that the
// test sets.
#pragma once

#include <array>
#include <atomic>

namespace speedrun {

struct FakeNvml {
    std::array<std::atomic<unsigned long long>, 2> reasons = {};  // one entry for each GPU
    std::atomic<int> reads = 0;
    std::atomic<int> open = 0, inits = 0;  // nvmlInit_v2 without nvmlShutdown; all
    std::atomic<int> fails = 0;            // code of each reading; 0: success
};

}  // namespace speedrun

// Found by dlsym.
extern "C" speedrun::FakeNvml* fake_nvml();
