// Functions that the compiler calls under -fsanitize=thread, one per kind of access, and the word accesses of
// simt.h. This file itself is compiled without it.
// build: in watch_tests
#include <cstring>

#include "tests/simt/watch.h"

using speedrun::simt::Access;
using speedrun::simt::note_access;

namespace speedrun::simt {

void copy_word(void* to, const void* from, size_t bytes) {
    const void* const instruction = __builtin_return_address(0);
    note_access(Access::Kind::read, from, bytes, instruction);
    note_access(Access::Kind::write, to, bytes, instruction);
    std::memcpy(to, from, bytes);
}

}  // namespace speedrun::simt

extern "C" {

void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define SPEEDRUN_HOOKS(bytes)                                                          \
    void __tsan_read##bytes(const void* address) {                                     \
        note_access(Access::Kind::read, address, bytes, __builtin_return_address(0));  \
    }                                                                                  \
    void __tsan_write##bytes(const void* address) {                                    \
        note_access(Access::Kind::write, address, bytes, __builtin_return_address(0)); \
    }                                                                                  \
    void __tsan_unaligned_read##bytes(const void* address) {                           \
        note_access(Access::Kind::read, address, bytes, __builtin_return_address(0));  \
    }                                                                                  \
    void __tsan_unaligned_write##bytes(const void* address) {                          \
        note_access(Access::Kind::write, address, bytes, __builtin_return_address(0)); \
    }
SPEEDRUN_HOOKS(1)
SPEEDRUN_HOOKS(2)
SPEEDRUN_HOOKS(4)
SPEEDRUN_HOOKS(8)
SPEEDRUN_HOOKS(16)
#undef SPEEDRUN_HOOKS

// Copies of larger structs are launch arguments. No instruction moves that much in device memory: throws
// there.
void __tsan_read_range(const void* address, unsigned long bytes) {
    note_access(Access::Kind::read, address, bytes, __builtin_return_address(0));
}
void __tsan_write_range(const void* address, unsigned long bytes) {
    note_access(Access::Kind::write, address, bytes, __builtin_return_address(0));
}

}  // extern "C"
