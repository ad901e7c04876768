// Input of the first layer: lookups, n-grams, smears and norms in the order of the config, up to its first sum.
#pragma once

#include "train/model/layers.h"

namespace speedrun {

class StreamInput {
  public:
    StreamInput(GraphWriter& writer, const ModelParts& parts, TokenTables& tables)
        : w_(writer), parts_(parts), tables_(tables) {}

    ValueId write();

  private:
    // Writes one part. A lookup of tokens may include the next part, positions, and then advances `part`.
    void add(size_t& part);
    void add_rows(const StreamPartConfig& part);
    // Returns x_t + c·σ(w·x_t)·x_{t−1}; x_{−1} = 0 in each row.
    ValueId smear(ValueId x, const StreamPartConfig& part);
    WeightedSum::Term row_before(ValueId x, ValueId gate);
    // Makes x_ complete on every rank and returns it.
    ValueId whole();
    TableRows rows_of(const StreamPartConfig& part) const { return parts_.find_table(part.table)->rows; }
    size_t num_parts() const;
    // True if a part after `from`, inclusive, needs all rows.
    bool rows_needed(size_t from) const;

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    ValueId x_ = kNoValue;
    bool term_ = false;       // x is a term of the sum over the ranks that share tables
    bool in_stream_ = false;  // x is placed as the residual stream
};

}  // namespace speedrun
