// Bulk copies for compute capability 9.0 (sm_90a): one thread starts the copy of a whole tile to shared memory
// (cp.async.bulk.tensor, "TMA"), and a barrier object in shared memory (mbarrier) counts its bytes. Also barriers of some warps of a
// block, and the share of registers of a warpgroup. Inline PTX with a twin for the host executor (tests/simt/bulk_copies.h), as in
// ptx.h. Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", "cp.async.bulk.tensor", "Tensor
// Swizzling Modes", "bar", "setmaxnreg".
//
// Phases: a barrier's phase completes when all `arrivals` of init() have arrived and all expected bytes have been written; the next
// phase begins then. wait(b, parity) returns when the phase of this parity has completed: phases 0, 2, … have parity 0. On a new
// barrier wait(b, 1) returns immediately.
// Call order: one thread calls init() on each barrier, then publish(); a block barrier; then all threads may use them.
#pragma once

#include "kernels/cuda/blocks/tensor_map.h"
#include "kernels/cuda/blocks/wgmma.h"

namespace speedrun {

namespace mbarrier {

using Barrier = uint64_t;  // in shared memory

#if SPEEDRUN_SIMT

using simt::Where;
inline void init(Barrier* b, int arrivals) {
    simt::mbarrier_init(b, arrivals);
}
inline void publish(Where where = Where::current()) {
    simt::mbarrier_publish(where);
}
inline void arrive(Barrier* b, Where where = Where::current()) {
    simt::mbarrier_arrive(b, where);
}
inline void expect_bytes(Barrier* b, int bytes, Where where = Where::current()) {
    simt::mbarrier_expect(b, bytes, where);
}
inline void wait(Barrier* b, int parity, Where where = Where::current()) {
    simt::mbarrier_wait(b, parity, where);
}

#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void init(Barrier* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx::shared_address(b)), "r"(arrivals)
                 : "memory");
}
// Makes initialised barriers visible to bulk copies, and after a block barrier to other threads.
__device__ inline void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    wgmma::fence_async_proxy();
}
// One arrival. Earlier accesses of this thread precede those after the waits that this phase ends.
__device__ inline void arrive(Barrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx::shared_address(b)) : "memory");
}
// One arrival, and `bytes` more that bulk copies must write in this phase. Call before they start.
__device__ inline void expect_bytes(Barrier* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx::shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
__device__ inline void wait(Barrier* b, int parity) {
    const uint32_t address = ptx::shared_address(b);
    uint32_t done = 0;
    do {
        asm volatile(
            "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.b32 %0, 1, 0, done;\n}\n"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
    } while (done == 0);
}

#else  // another GPU: never launched there

__device__ inline void init(Barrier* /*b*/, int /*arrivals*/) {}
__device__ inline void publish() {}
__device__ inline void arrive(Barrier* /*b*/) {}
__device__ inline void expect_bytes(Barrier* /*b*/, int /*bytes*/) {}
__device__ inline void wait(Barrier* /*b*/, int /*parity*/) {
    __trap();
}

#endif

}  // namespace mbarrier

// Starts copying a box of the map into a tile in the layout of tile.cuh's Panels. The box begins at column x and row y of sequence z.
// Elements outside the rows of the sequence or the columns of the matrix become zero. Counts the bytes of a box at the barrier. Called
// by one thread. The tile's address is a multiple of 1024. Other threads that have written the tile call wgmma::fence_async_proxy()
// first.
#if SPEEDRUN_SIMT
inline void copy_box(void* tile, const TensorMap& map, mbarrier::Barrier* b, int x, int y, int z,
                     simt::Where where = simt::Where::current()) {
    simt::copy_box(tile, map, b, {x, y, z}, where);
}
#else
__device__ inline void copy_box(void* tile, const TensorMap& map, mbarrier::Barrier* b, int x, int y, int z) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(ptx::shared_address(tile)),
        "l"(&map), "r"(ptx::shared_address(b)), "r"(x), "r"(y), "r"(z)
        : "memory");
#else
    __trap();
#endif
}
#endif

// Barriers of kThreads threads, whole warps; id from 1 to 15 (0 is __syncthreads). sync() waits until kThreads threads have called
// sync() or arrive(). wait_turn() and end_turn() are the same for speed only: no access depends on them, and the race check does not
// count them.
namespace named_barrier {

#if SPEEDRUN_SIMT
template <int kThreads>
void sync(int id, simt::Where where = simt::Where::current()) {
    simt::named_barrier(id, kThreads, true, where);
}
template <int kThreads>
void arrive(int id, simt::Where where = simt::Where::current()) {
    simt::named_barrier(id, kThreads, false, where);
}
template <int kThreads>
void wait_turn(int id, simt::Where where = simt::Where::current()) {
    simt::named_turn(id, kThreads, true, where);
}
template <int kThreads>
void end_turn(int id, simt::Where where = simt::Where::current()) {
    simt::named_turn(id, kThreads, false, where);
}
#else
template <int kThreads>
__device__ inline void sync(int id) {
    static_assert(kThreads % 32 == 0);
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void arrive(int id) {
    static_assert(kThreads % 32 == 0);
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void wait_turn(int id) {
    sync<kThreads>(id);
}
template <int kThreads>
__device__ inline void end_turn(int id) {
    arrive<kThreads>(id);
}
#endif

}  // namespace named_barrier

// Changes the registers per thread of the calling warpgroup, a multiple of 8 from 24 to 256: down from the kernel's own number, or up
// after others have gone down.
namespace registers {

#if SPEEDRUN_SIMT
template <int kCount>
void decrease() {
    simt::warpgroup_registers(kCount, false);
}
template <int kCount>
void increase() {
    simt::warpgroup_registers(kCount, true);
}
#else
template <int kCount>
__device__ inline void decrease() {
    static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ inline void increase() {
    static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
#endif

}  // namespace registers

}  // namespace speedrun
