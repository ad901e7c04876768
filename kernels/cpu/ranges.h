// Range annotations for ThreadSanitizer. In inner loops of matmuls it would check every load of a panel that
// hundreds of rows read: more than a third of the time of its runs. It does not see AMX loads at all. Such a
// loop is marked SPEEDRUN_BY_RANGES, and its caller reports once the memory that it reads and writes.
#pragma once

#include <cstdint>

#ifdef __SANITIZE_THREAD__
#define SPEEDRUN_BY_RANGES __attribute__((no_sanitize("thread")))
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#else
#define SPEEDRUN_BY_RANGES
#endif

namespace speedrun::cpu {

// `lines` runs of `count` elements, `stride` elements apart.
template <class T>
void note_reads([[maybe_unused]] const T* first, [[maybe_unused]] int64_t count,
                [[maybe_unused]] int64_t lines = 1, [[maybe_unused]] int64_t stride = 0) {
#ifdef __SANITIZE_THREAD__
    for (int64_t i = 0; i < lines; ++i)
        __tsan_read_range(const_cast<T*>(first + i * stride), static_cast<unsigned long>(count) * sizeof(T));
#endif
}
template <class T>
void note_writes([[maybe_unused]] T* first, [[maybe_unused]] int64_t count, [[maybe_unused]] int64_t lines,
                 [[maybe_unused]] int64_t stride) {
#ifdef __SANITIZE_THREAD__
    for (int64_t i = 0; i < lines; ++i)
        __tsan_write_range(first + i * stride, static_cast<unsigned long>(count) * sizeof(T));
#endif
}

}  // namespace speedrun::cpu
