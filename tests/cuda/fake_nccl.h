// A fake libnccl.so.2: ranks are threads, collectives are work on the fake runtime's streams, sums are computed by
// communicator.h. A collective that a peer does not call waits until it is aborted.
#pragma once

#include <functional>

namespace speedrun::testing {

struct FakeNccl {
    // Enqueues work on a stream of the fake runtime.
    void (*enqueue)(void* stream, std::function<void()> work) = nullptr;
    bool async_error = false;  // result of ncclCommGetAsyncError
    bool refuses = false;      // collectives fail when enqueued
    bool hangs = false;        // connecting never returns
    bool blocks = false;       // calls of collectives never return
    int version = 0;           // 0: that of nccl.h
    // A GPU runs one collective at a time, as if each kernel used all multiprocessors. With NCCL_LAUNCH_ORDER_IMPLICIT=1 they
    // start in the order of the host's calls. Otherwise every second GPU prefers the latest one that is ready.
    bool one_at_a_time = false;
    void (*connected)() = nullptr;  // called when a rank has received a communicator
};

}  // namespace speedrun::testing

// Functions that a test looks up in the library by dlsym.
extern "C" {
void fake_nccl_set(const speedrun::testing::FakeNccl& nccl);
int fake_nccl_max_ctas();                   // value of the latest communicator, as in ncclConfig_t
int fake_nccl_open();                       // communicators that were neither destroyed nor aborted
int fake_nccl_inits();                      // calls of ncclCommInitRankConfig
int fake_nccl_splits();                     // calls of ncclCommSplit
int fake_nccl_calls(const char* function);  // collectives enqueued since fake_nccl_set
}
