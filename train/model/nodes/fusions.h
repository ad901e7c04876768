// Operations that replace several nodes.
#pragma once

#include "train/model/graph/fusion.h"

namespace speedrun {

// Fusions: a sum or weighted sum, or both, with the norm that reads it; QK-norm and rotary with the mix of values;
// a linear with relu² after it, and the FP8 linear that reads that; in backward relu² with the linear that reads it, and a
// collective with the linear that reads its result.
Fusions model_fusions();

}  // namespace speedrun
