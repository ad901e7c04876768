// Keys with some dimensions of the token before (op::OffsetKeysForward).
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class KeyOffsetPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "key_offset";
    static constexpr const char* kHelp =
        "shift of unrotated key dimensions: keys read them from the previous token, across documents; "
        "the first token of a row keeps its own";

    void check(const AttentionScope& scope) const override;
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
