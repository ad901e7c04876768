// Runs launches of simt.h on the calling thread: block after block, each thread of a block on a fiber, in the
// order of the options. A kernel must give the same bits in every order.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/simt/simt.h"

namespace speedrun::simt {

// Order of threads that could run, and of blocks. `forward` and `reverse` run a thread (after an exchange,
// its warp) as far as possible before the next one. `random` draws at every switch.
enum class Order : uint8_t { forward, reverse, random };

class Watch;  // watch.h

constexpr int64_t kSharedMemoryOfH100 = 227 << 10;  // maximum of a block

struct Options {
    Order order = Order::forward;
    uint64_t seed = 1;
    Watch* watch = nullptr;  // sees every launch; in a watched build also each access
    // Requires that every thread calls wait_for_prior_kernels(), before it accesses device memory (watched
    // builds).
    bool kernels_wait = false;
    // Reported maximum shared memory of a block, for kernels that use more if available. Little, so that
    // small tensors reach both paths. A launch may use the maximum of compute capability 9.0.
    int64_t shared_memory = (2 << 10) + 128;
    int64_t multiprocessors = 3;  // reported, for persistent blocks: few, so that a block has several items
};

struct Launch {
    const char* file;      // source location of launch() …
    const char* function;  // … and its function: replaces the kernel's name in messages
    int line;
    dim3 grid, block;
    int64_t shared_bytes;
    std::function<void()> kernel;   // body of each thread
    const void* address = nullptr;  // address of the kernel's function, for its name
};

// Throws Error with kernel, block, thread and location if the kernel violates a rule of simt.h.
void execute(const Launch& launch, const Options& options);

// Statistics of the calling thread's last launch, for tests of the executor.
struct Statistics {
    int64_t threads = 0, switches = 0, barriers = 0, exchanges = 0;
};
Statistics last_statistics();

}  // namespace speedrun::simt
