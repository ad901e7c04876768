// The one way in which CPU kernels use threads. With OpenMP off (ThreadSanitizer builds: libgomp is not
// instrumented) every loop runs on the stream's own thread, with the same results.
#pragma once

#include <cstdint>

#ifdef SPEEDRUN_HAS_OPENMP
#include <omp.h>
#endif

namespace speedrun::cpu {

// Sets the number of threads that parallel loops started by the calling thread use.
inline void set_num_threads([[maybe_unused]] int count) {
#ifdef SPEEDRUN_HAS_OPENMP
    omp_set_num_threads(count);
#endif
}

inline int max_threads() {
#ifdef SPEEDRUN_HAS_OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

inline int thread_index() {
#ifdef SPEEDRUN_HAS_OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Calls body(i) for i in [0, count), in contiguous chunks, one per thread. Which thread runs which i never
// changes a result: bodies write disjoint memory and reduce in a fixed order.
template <class Body>
void parallel_for(int64_t count, Body&& body) {
#ifdef SPEEDRUN_HAS_OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (int64_t i = 0; i < count; ++i) body(i);
}

// The same, handed out one by one: for items of unequal cost.
template <class Body>
void parallel_for_dynamic(int64_t count, Body&& body) {
#ifdef SPEEDRUN_HAS_OPENMP
#pragma omp parallel for schedule(dynamic, 1)
#endif
    for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace speedrun::cpu
