// Operations that replace several nodes.
#pragma once

#include "train/model/graph/fusion.h"

namespace speedrun {

// Fusions: a sum or weighted sum, or both, with the norm that reads it; QK-norm and rotary with the mix of values;
// relu² with the FP8 linear that reads it; a collective with the linear that reads its result.
Fusions model_fusions();

}  // namespace speedrun
