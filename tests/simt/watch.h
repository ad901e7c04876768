// What watches see of a launch: every access to shared and device memory that its threads make, and the
// barriers that they pass. A watched build compiles the .cu files with -fsanitize=thread and links the hooks
// of watch_hooks.cpp in place of ThreadSanitizer's library: the compiler marks each access, and the watch of
// the device gets them. Accesses to stacks, launch arguments and the executor itself are left out.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simt/executor.h"

namespace speedrun::simt {

struct Access {
    enum class Kind : uint8_t {
        read,
        write,
        copy_begin,  // an asynchronous copy's write of shared memory starts …
        copy_end,    // … and has arrived for the thread that waited
        product,     // a warpgroup's product reads an operand: when it starts and when it is waited for
    };
    Kind kind;
    bool shared;        // `address` is an offset in the block's shared memory; else one of device memory
    uintptr_t address;  // of the first byte
    int bytes;          // a power of 2, at most 16
    const void* instruction;  // the place in the code
    unsigned thread;          // in its block
};

// A watch belongs to one device, whose launches run one after the other. What its functions throw ends the
// launch.
class Watch {
  public:
    virtual ~Watch() = default;
    virtual void begin_launch(const Launch& launch) = 0;
    virtual void begin_block(unsigned num_threads, int64_t shared_bytes) = 0;
    virtual void access(const Access& access) = 0;
    virtual void block_barrier() = 0;              // all threads have come to it
    virtual void warp_barrier(unsigned warp) = 0;  // all lanes have come to a __syncwarp
    virtual void mma(unsigned thread) = 0;         // by each lane of a tensor-core product
    virtual void fence(unsigned /*thread*/) {}     // of the device: __threadfence
    // A read and write of device memory that is one, whatever other blocks do; no `access`.
    virtual void atomic(unsigned /*thread*/, uintptr_t /*address*/) {}
    virtual void end_block() = 0;
    virtual void end_launch() = 0;
    // Does the executor pass over this barrier as if it were not written there? Plants the fault that a watch
    // has to find.
    virtual bool is_removed(const Launch& /*launch*/, Where /*barrier*/) { return false; }
};

// "norm_forward_kernel<Bf16, 8, 4>", of a kernel of functors "map_kernel<8>". The program has to export its
// symbols.
std::string kernel_name(const Launch& launch);

// Tells the watch of the running launch, if there is one, of an access by the running thread; `bytes` at any
// address.
void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction);

}  // namespace speedrun::simt
