// Reports to a watch: accesses to shared memory and to the device's buffers, and tensor-core matmuls.
// build: in speedrun_simt_executor
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tests/simt/execution.h"

namespace speedrun::simt {

void Executor::note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction) {
    if (!running_ || !options_.watch) return;
    const Position& p = running_->position;
    const auto at = reinterpret_cast<uintptr_t>(address), shared = reinterpret_cast<uintptr_t>(p.shared);
    Access access{kind, false, at, static_cast<int>(bytes), instruction, p.linear};
    if (at - shared < static_cast<uintptr_t>(p.shared_bytes)) {
        access.shared = true;
        access.address = at - shared;
    } else {
        const auto range = std::upper_bound(device_memory_.begin(), device_memory_.end(), at,
                                            [](uintptr_t a, const DeviceRange& r) { return a < r.begin; });
        if (range == device_memory_.begin() || at >= std::prev(range)->end) return;
    }
    if (options_.kernels_wait && !access.shared && !running_->waited)
        fail("touches device memory before it has waited for the kernels before it", nullptr);
    if (bytes > 16 && kind != Access::Kind::bulk_read)
        fail(fmt::format("moves {} bytes in one piece: no instruction does", bytes), nullptr);
    options_.watch->access(access);
}

void Executor::note_mma() {
    if (running_ && options_.watch) options_.watch->mma(running_->position.linear);
}

void Executor::note_fence() {
    if (running_ && options_.watch) options_.watch->fence(running_->position.linear);
}

void Executor::note_proxy_fence() {
    if (running_ && options_.watch) options_.watch->proxy_fence(running_->position.linear);
}

void Executor::note_atomic(const void* address) {
    if (running_ && options_.watch)
        options_.watch->atomic(running_->position.linear, reinterpret_cast<uintptr_t>(address));
}

void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction) {
    if (position) executor().note_access(kind, address, bytes, instruction);
}

void count_mma() {
    executor().note_mma();
}

void note_fence() {
    executor().note_fence();
}

void note_atomic(const void* address) {
    executor().note_atomic(address);
}

}  // namespace speedrun::simt
