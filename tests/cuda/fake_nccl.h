// A stand-in for libnccl.so.2: ranks are threads, collectives are work of the fake runtime's streams, sums
// are those of communicator.h. A collective whose peers do not come waits until it is aborted.
#pragma once

#include <functional>

namespace speedrun::testing {

struct FakeNccl {
    // How work gets on a stream of the fake runtime.
    void (*enqueue)(void* stream, std::function<void()> work) = nullptr;
    bool async_error = false;  // what ncclCommGetAsyncError tells
    bool refuses = false;      // collectives fail when enqueued
    bool hangs = false;        // whoever connects waits for ever
};

}  // namespace speedrun::testing

// What a test finds in the library by dlsym.
extern "C" {
void fake_nccl_set(const speedrun::testing::FakeNccl& nccl);
int fake_nccl_max_ctas();  // of the communicator that was opened last; as ncclConfig_t has it
int fake_nccl_open();      // communicators that were neither destroyed nor aborted
int fake_nccl_inits();     // calls of ncclCommInitRankConfig
int fake_nccl_splits();    // and of ncclCommSplit
}
