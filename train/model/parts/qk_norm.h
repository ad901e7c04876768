// RMS norm of each head's queries and keys, in one operation with rotary (op::QkNormRotaryForward).
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class QkNormPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "qk_norm";
    static constexpr const char* kHelp = "RMS norm of each head's q and k";
    static constexpr bool kDefault = true;

    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
