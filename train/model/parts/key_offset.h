// Keys with some dimensions of the token before (op::OffsetKeysForward).
#pragma once

#include "train/config/attention_part.h"

namespace speedrun {

class KeyOffsetPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "key_offset";
    static constexpr const char* kHelp =
        "keys have the dimensions that rotary does not turn from the token before, across documents; the first token "
        "of a row has its own";

    void check(const AttentionScope& scope) const override;
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
