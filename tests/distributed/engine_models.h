// Models that no preset says, for the engine on ranks: a family of modes each (Mode::family).
#pragma once

#include "train/config/config.h"

namespace speedrun::testing {

ModelConfig model_in_parts(int64_t heads);
ModelConfig model_in_eight_bits(int64_t heads);
// … by scales that a step leaves for the next one.
ModelConfig model_with_kept_scales(int64_t heads);
ModelConfig injected_model(int64_t heads);
ModelConfig model_with_networks(int64_t heads);
ModelConfig model_with_places(int64_t heads);
ModelConfig with_composed_heads(ModelConfig model);  // "parts", with mixes of heads' maps
// untied: the head comes apart behind the first stage.
ModelConfig newest_model(int64_t heads, bool untied);
// … without what ranks that share rows do not have: heads in pairs, and mixes of heads' maps.
ModelConfig newest_model_for_shared_rows(int64_t heads, bool untied);

}  // namespace speedrun::testing
