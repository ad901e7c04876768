// The OpenMP threads of oneDNN, the one part that uses them: our own loops have a team (team.h). With OpenMP
// off (ThreadSanitizer builds: libgomp is not instrumented) there is one.
#pragma once

#ifdef SPEEDRUN_HAS_OPENMP
#include <omp.h>
#endif

namespace speedrun::cpu {

// For what the calling thread starts.
inline void set_library_threads([[maybe_unused]] int count) {
#ifdef SPEEDRUN_HAS_OPENMP
    omp_set_num_threads(count);
#endif
}

// The machine's cores, as far as this process may use them, or OMP_NUM_THREADS.
inline int library_threads() {
#ifdef SPEEDRUN_HAS_OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

}  // namespace speedrun::cpu
