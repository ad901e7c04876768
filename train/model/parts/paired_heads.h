// Pairs of heads j and j + H/2 as one head over rows of twice the length, in which their tokens alternate.
#pragma once

#include "train/config/attention_part.h"

namespace speedrun {

class PairedHeadsPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "paired";
    static constexpr const char* kHelp =
        "heads j and j + H/2 of H are one head over rows of twice the length, where their q, k and v alternate: a token has "
        "two places, and the window, which counts these, half its span. Rotary turns heads of even number by the first "
        "place, heads of odd number by the second";

    void check(const AttentionScope& scope) const override;
    bool needs_all_heads() const override { return true; }
    bool needs_whole_rows() const override { return true; }
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
