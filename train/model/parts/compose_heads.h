// Dynamically composable attention: a mix of all heads' maps, applied to the values of each head and added to its output
// (op::ComposeHeadsForward).
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class ComposeHeadsPart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "compose_heads";
    static constexpr const char* kHelp =
        "DCMHA (dynamically composable multi-head attention): adds a learned mix of all heads' maps, applied to the head's "
        "values, to each head's output; null: off";

    int64_t keys = 112;        // last keys of the document that the maps cover
    double maps_start = 1;     // w1, weight of each head in the mix, before their norm
    double output_start = 0;   // w2, factor of each head's additional output
    std::string network = {};  // network that computes both

    void fields(FieldVisitor& v);
    void check(const AttentionScope& scope) const override;
    std::vector<TokenFactor> numbers() const override;
    bool needs_all_heads() const override { return true; }
    bool needs_whole_rows() const override { return true; }
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
