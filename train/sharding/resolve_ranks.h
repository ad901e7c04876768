// From the config to Ranks: the mesh, the plan, and what each rank may use of its host.
#pragma once

#include <string>
#include <vector>

#include "train/sharding/ranks.h"

namespace speedrun {

// The ranks of this world, as section `parallel` wants them. Usage errors: those of resolve_mesh,
// resolve_plan and validate_ranks.
Ranks resolve_ranks(const Config& config, World& world);

// This many ranks, none of which runs: what `plan` looks at.
Ranks plan_ranks(const Config& config, int num_ranks);

// Usage error, with the sizes that would do, unless the ranks can share a step's tokens in whole
// microbatches.
void validate_ranks(const Config& config, const Mesh& mesh);

// The CPU cores that a process may run on, and the host they belong to.
struct CoreSet {
    std::string host;
    std::vector<int> cores;  // ascending
};
CoreSet available_cores();

// Threads for process `own` of these, at least 1: a core that several may use counts for each by its share,
// so that the number is right whether the launcher ties ranks to cores or not.
int share_of_cores(const std::vector<CoreSet>& processes, size_t own);

// Threads that this rank may use beside the others; collective over the ranks. 0, "decide yourself", for a
// rank alone and where OMP_NUM_THREADS decides.
int threads_of_rank(const Ranks& ranks);

}  // namespace speedrun
