// A gate of each head's output: a sigmoid of the first columns of the normed stream, or a factor that a network computes.
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class HeadGatePart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "gate";
    static constexpr const char* kHelp = "sigmoid gate of each head's output, initial value 1/2";
    static constexpr double kStart = 0.5;  // initial value of a sigmoid

    int64_t columns = 12;      // first columns of the normed stream
    std::string network = {};  // network that computes the factor
    double start = kStart;     // factor of a network

    void fields(FieldVisitor& v);
    void check(const AttentionScope& scope) const override;
    std::vector<TokenFactor> numbers() const override;
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
