// A stand-in for libcupti.so: activity records, laid out by the structs of cupti.h, of what the fake runtime
// is asked to do. Its clock is not the host's: another origin, and twice as fast.
#pragma once

#include "tests/cuda/fake_gpu.h"

namespace speedrun::testing {

struct FakeCupti {
    bool refuses = true;   // as a CUPTI that another tool holds
    int records_lost = 0;  // what it says that it has dropped
};

constexpr int kFakeWorkNs = 500;  // on the host's clock, that every piece of work takes

}  // namespace speedrun::testing

// What a test finds in the library by dlsym.
extern "C" {
void fake_cupti_set(const speedrun::testing::FakeCupti& cupti);
void fake_cupti_work(const speedrun::testing::FakeWork& work);
int fake_cupti_buffers();  // delivered so far
}
