// A fake libcupti.so: activity records in the structs of cupti.h for the work of the fake runtime. Its clock
// differs from the host's: another origin, and twice as fast.
#pragma once

#include "tests/cuda/fake_gpu.h"

namespace speedrun::testing {

struct FakeCupti {
    bool refuses = true;   // like a CUPTI in use by another tool
    int records_lost = 0;  // reported number of dropped records
};

constexpr int kFakeWorkNs = 500;  // host-clock duration of every piece of work

}  // namespace speedrun::testing

// Functions that a test looks up in the library by dlsym.
extern "C" {
void fake_cupti_set(const speedrun::testing::FakeCupti& cupti);
void fake_cupti_work(const speedrun::testing::FakeWork& work);
int fake_cupti_buffers();  // number delivered so far
}
