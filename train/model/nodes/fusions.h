// The operations that stand for several nodes.
#pragma once

#include "train/model/graph/fusion.h"

namespace speedrun {

// A sum or weighted sum and the norm (or mix and norm) that reads it; QK-norm with rotary and the mix of values behind it;
// relu² and what multiplies it in 8 bits.
Fusions model_fusions();

}  // namespace speedrun
