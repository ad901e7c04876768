// Gated rows of a value table: v + gate·row. The gate of a head is 2·sigmoid of the first columns of attention's input and of
// the row; or a network computes a gate for each half of the heads.
#pragma once

#include "train/model/parts/attention.h"

namespace speedrun {

class ValueGatePart final : public AttentionPart {
  public:
    static constexpr const char* kKey = "value_gate";
    static constexpr const char* kHelp = "gates of the rows of value_table per token and head: v + gate*row";
    static constexpr double kStart = 1;  // initial value of a sigmoid

    int64_t columns = 6;       // columns of the input, and of the row
    std::string network = {};  // network that computes both gates
    double start = kStart;     // initial value of a network's gates

    void fields(FieldVisitor& v);
    void check(const AttentionScope& scope) const override;
    std::vector<TokenFactor> numbers() const override;
    bool needs_all_heads() const override { return true; }
    std::optional<double> value_row_factor() const override { return start; }
    void build(AttentionLayer& layer) const override;
};

}  // namespace speedrun
