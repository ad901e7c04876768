// Interface of watches of a launch: every access of its threads to shared and device memory, and the barriers
// that they pass. A watched build compiles the .cu files with -fsanitize=thread and links the hooks of
// watch_hooks.cpp instead of ThreadSanitizer's library. The compiler marks each access, and the device's
// watch receives it. Accesses to stacks, launch arguments and the executor itself are excluded.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simt/executor.h"

namespace speedrun::simt {

struct Access {
    enum class Kind : uint8_t {
        read,
        write,
        copy_begin,  // an asynchronous copy begins to write shared memory …
        copy_end,    // … and has arrived for the thread that waited
        product,     // a warpgroup's matmul reads an operand: at its start, and when it is waited for
        bulk_read,   // a bulk copy reads device memory; up to 128 bytes, at the start of the copy
    };
    Kind kind;
    bool shared;        // `address` is an offset in the block's shared memory; otherwise in device memory
    uintptr_t address;  // address of the first byte
    int bytes;          // a power of 2, at most 16
    const void* instruction;  // code address
    unsigned thread;          // index in its block
};

// Watch of one device. Launches run one after the other. An exception from these functions ends the launch.
class Watch {
  public:
    virtual ~Watch() = default;
    virtual void begin_launch(const Launch& launch) = 0;
    virtual void begin_block(unsigned num_threads, int64_t shared_bytes) = 0;
    virtual void access(const Access& access) = 0;
    virtual void block_barrier() = 0;                 // all threads have reached it
    virtual void warp_barrier(unsigned warp) = 0;     // all lanes have reached a __syncwarp
    virtual void mma(unsigned thread) = 0;            // called by each lane of a tensor-core matmul
    virtual void fence(unsigned /*thread*/) {}        // device-wide: __threadfence
    virtual void proxy_fence(unsigned /*thread*/) {}  // fence.proxy.async
    // Synchronisation by mbarriers and named barriers, each with a key: arrival of a thread; the phase is complete; a thread's wait
    // for it has returned.
    virtual void release(unsigned /*thread*/, int /*key*/) {}
    virtual void phase_end(int /*key*/) {}
    virtual void acquire(unsigned /*thread*/, int /*key*/) {}
    // A bulk copy to shared memory, `bytes` from offset `to` on, that counts at mbarrier `key`.
    virtual void bulk_begin(unsigned /*thread*/, int /*key*/, uintptr_t /*to*/, int /*bytes*/) {}
    virtual void bulk_end(int /*key*/, uintptr_t /*to*/, int /*bytes*/) {}
    // Atomic read and write of device memory; it is not reported as an `access`.
    virtual void atomic(unsigned /*thread*/, uintptr_t /*address*/) {}
    virtual void end_block() = 0;
    virtual void end_launch() = 0;
    // True if the executor must skip this barrier. Plants a fault that the watch has to find.
    virtual bool is_removed(const Launch& /*launch*/, Where /*barrier*/) { return false; }
};

// "norm_forward_kernel<Bf16, 8, 4>", for a kernel of functors "map_kernel<8>". The program must export its
// symbols.
std::string kernel_name(const Launch& launch);

// Reports an access by the running thread to the watch of the running launch, if there is one; `bytes` at any
// address.
void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction);

}  // namespace speedrun::simt
