// Runs launches of simt.h on the calling thread: block after block, each thread of a block on a fiber, in an
// order that the options choose. One and the same kernel has to give the same bits in every order.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/simt/simt.h"

namespace speedrun::simt {

// Which thread runs next where several could, and which block. `forward` and `reverse` let a thread (and,
// after an exchange, its warp) run as far as it can before the next one; `random` picks anew at every switch.
enum class Order : uint8_t { forward, reverse, random };

class Watch;  // watch.h

constexpr int64_t kSharedMemoryOfH100 = 227 << 10;  // that a block may have

struct Options {
    Order order = Order::forward;
    uint64_t seed = 1;
    Watch* watch = nullptr;  // sees every launch; in a watched build also each access
    // Has every thread to call wait_for_kernels_before(), and before it touches device memory (watched builds)?
    bool kernels_wait = false;
    // What kernels that keep more where there is more are told that a block may have: little, so that small
    // tensors meet both ways. A launch may take what a block of compute capability 9.0 can have.
    int64_t shared_memory = (2 << 10) + 128;
};

struct Launch {
    const char* file;      // where launch() was called …
    const char* function;  // … and in which function: stands for the kernel's name in messages
    int line;
    dim3 grid, block;
    int64_t shared_bytes;
    std::function<void()> kernel;   // what each thread runs
    const void* address = nullptr;  // of the kernel's function, for its name
};

// Throws Error naming kernel, block, thread and place if the kernel breaks a rule of simt.h.
void execute(const Launch& launch, const Options& options);

// Figures of the calling thread's last launch, for the tests of the tester.
struct Statistics {
    int64_t threads = 0, switches = 0, barriers = 0, exchanges = 0;
};
Statistics last_statistics();

}  // namespace speedrun::simt
