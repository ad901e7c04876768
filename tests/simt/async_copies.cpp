// Asynchronous copies to shared memory: bytes arrive when their group is waited for. Until then the
// destination is poisoned.
// build: in speedrun_simt_executor
#include <cstring>

#include "tests/simt/execution.h"

namespace speedrun::simt {

void copy_async(void* shared, const void* global, int bytes, int valid_bytes) {
    Thread& thread = executor().self();
    const auto* const to = static_cast<const std::byte*>(shared);
    const Position& p = thread.position;
    if (to < p.shared || to + bytes > p.shared + p.shared_bytes)
        executor().fail("an asynchronous copy ends outside the shared memory", nullptr);
    if (reinterpret_cast<uintptr_t>(shared) % static_cast<uintptr_t>(bytes) != 0 ||
        reinterpret_cast<uintptr_t>(global) % static_cast<uintptr_t>(bytes) != 0)
        executor().fail("an asynchronous copy is not aligned to its size", nullptr);
    std::memset(shared, static_cast<int>(kPoison), static_cast<size_t>(bytes));
    if (thread.copies.empty()) thread.copies.emplace_back();
    thread.copies.back().push_back({shared, global, bytes, valid_bytes});
    const void* const instruction = __builtin_return_address(0);
    if (valid_bytes > 0)
        executor().note_access(Access::Kind::read, global, static_cast<size_t>(bytes), instruction);
    executor().note_access(Access::Kind::copy_begin, shared, static_cast<size_t>(bytes), instruction);
}

void copy_async_commit() {
    Thread& thread = executor().self();
    if (thread.copies.empty()) thread.copies.emplace_back();
    thread.copies.emplace_back();  // opens a new group
}

void copy_async_wait(int groups_in_flight) {
    Thread& thread = executor().self();
    while (static_cast<int>(thread.copies.size()) - 1 > groups_in_flight) {
        for (const Thread::Copy& copy : thread.copies.front()) {
            std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.valid));
            std::memset(static_cast<std::byte*>(copy.to) + copy.valid, 0,
                        static_cast<size_t>(copy.bytes - copy.valid));
            executor().arrived(copy.to, static_cast<size_t>(copy.bytes));
            executor().note_access(Access::Kind::copy_end, copy.to, static_cast<size_t>(copy.bytes),
                                   __builtin_return_address(0));
        }
        thread.copies.pop_front();
    }
}

}  // namespace speedrun::simt
