// From the config to Ranks: the mesh and how they share a step.
#pragma once

#include "train/sharding/ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// The ranks of this world, as section `parallel` wants them. Usage errors: those of resolve_mesh,
// resolve_sharing and validate_ranks.
Ranks resolve_ranks(const Config& config, World& world);

// This many ranks, none of which runs: what `plan` looks at.
Ranks plan_ranks(const Config& config, int num_ranks);

// What one of them computes, over all stages.
RankTokens rank_tokens(const Config& config, const Ranks& ranks);

// Usage error, with the sizes that would do, unless the ranks can share a step's tokens in whole
// microbatches.
void validate_ranks(const Config& config, const Mesh& mesh);

}  // namespace speedrun
