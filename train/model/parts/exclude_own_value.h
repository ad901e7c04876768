// Attention that excludes the token's own value: each head's output loses tanh(a) of its component along v.
#pragma once

#include "train/config/attention_part.h"

namespace speedrun {

class ExcludeOwnValuePart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "exclude_own_value";
    static constexpr const char* kHelp =
        "take from each head's output a learned share of its component along the token's own v; null: do not";

    double start = 0;          // a of each head
    std::string network = {};  // network that computes a

    void fields(FieldVisitor& v);
    std::vector<TokenNumber> numbers() const override;
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
