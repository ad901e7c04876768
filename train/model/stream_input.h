// What the input is made of: look-ups, n-grams, smears and norms, in the order of the config, up to its first sum.
#pragma once

#include "train/model/token_tables.h"

namespace speedrun {

class StreamInput {
  public:
    StreamInput(GraphWriter& writer, const ModelParts& parts, TokenTables& tables)
        : w_(writer), parts_(parts), tables_(tables) {}

    ValueId write();

  private:
    // A part of the input, of which look-ups of tokens may take two: the one behind it.
    void add(size_t& part);
    void add_rows(const StreamPartConfig& part);
    // x_t + c·σ(w·x_t)·x_{t−1}, within a row.
    ValueId smear(ValueId x, const StreamPartConfig& part);
    WeightedSum::Term row_before(ValueId x, ValueId gate);
    // x, all of it on every rank.
    ValueId whole();
    TableRows rows_of(const StreamPartConfig& part) const { return parts_.find_table(part.table)->rows; }
    size_t num_parts() const;
    // Does anything from this part on need all rows?
    bool rows_needed(size_t from) const;

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    ValueId x_ = kNoValue;
    bool term_ = false;       // x is a term of the sum over the ranks that share tables
    bool in_stream_ = false;  // it is where the residual stream is
};

}  // namespace speedrun
