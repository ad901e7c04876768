// Operations that replace several nodes.
#pragma once

#include <functional>

#include "train/model/graph/fusion.h"

namespace speedrun {

// True if attention's backward applies that of QK-norm and rotary (Ops::fuses_rotary).
using FusesRotary = std::function<bool(HeadWidths)>;

// Fusions: a sum or weighted sum, or both, with the norm that reads it; a mix of values with QK-norm and rotary;
// a linear with relu² after it, and the FP8 linear that reads that. In backward also: relu² with the linear that reads it; a
// collective with the linear that reads its result; where fuses_rotary, QK-norm and rotary with attention.
Fusions model_fusions(FusesRotary fuses_rotary = {});

}  // namespace speedrun
