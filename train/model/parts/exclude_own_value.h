// Exclusive self-attention (XSA): y − tanh(a)·(y·v)/(v·v)·v for each head's output y and the token's own v.
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class ExcludeOwnValuePart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "exclude_own_value";
    static constexpr const char* kHelp =
        "XSA (exclusive self-attention): subtracts a learned share of the component along the token's own v from each head's "
        "output; null: off";

    double start = 0;          // a of each head
    std::string network = {};  // network that computes a

    void fields(FieldVisitor& v);
    std::vector<TokenFactor> numbers() const override;
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
