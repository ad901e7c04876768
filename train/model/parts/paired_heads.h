// Pairs of heads j and j + H/2 as one head over rows of twice the length, in which their tokens alternate.
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class PairedHeadsPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "paired";
    static constexpr const char* kHelp =
        "attention of heads j and j + H/2 as one head, with two alternating positions per token. The window counts "
        "positions, so w positions cover w/2 tokens. Rotary uses the first position for even heads, the second for odd heads";

    void check(const AttentionScope& scope) const override;
    bool needs_all_heads() const override { return true; }
    bool needs_whole_rows() const override { return true; }
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
