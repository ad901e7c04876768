// Derives Ranks from the config: the mesh, and how ranks share a step.
#pragma once

#include "train/sharding/ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// Returns the ranks of this world under section `parallel`. Usage errors of resolve_mesh, resolve_sharing and
// validate_ranks.
Ranks resolve_ranks(const Config& config, World& world);

// Returns `num_ranks` ranks that do not run, for `plan`.
Ranks plan_ranks(const Config& config, int num_ranks);

// Returns the tokens of one rank, the maximum over all stages.
RankTokens rank_tokens(const Config& config, const Ranks& ranks);

// Throws a usage error, with valid sizes, unless the ranks can share a step's tokens in whole microbatches.
void validate_ranks(const Config& config, const Mesh& mesh);

}  // namespace speedrun
