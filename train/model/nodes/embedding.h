// Look-ups in tables of rows.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// A table of which each rank of the tensor axis has some rows or columns: what it looks up is a term of the sum over them, 0
// where others have the row or column. Ids of rows of others are one more than the last.
struct SharedTable {
    bool shares_rows = false;
    bool adds_positions = true;             // else another rank adds them, but all have their gradient
    int64_t first_column = 0, columns = 0;  // of what is looked up, those that this rank has; 0: all

    Tensor own_columns(const Tensor& rows) const {
        return columns == 0 ? rows : rows.column_slice(first_column, columns);
    }
};

// Signs that rows are multiplied by, as op::RowSigns has them; no values: none.
struct SignPorts {
    ValueId bits = kNoValue;  // ids (rows, words)
    ValueId row = kNoValue;   // ids (tokens)
};

// out[t] = table[tokens[t]] (+ position_table[positions[t]]), with signs s[t] ⊙ table[tokens[t]].
class Embedding final : public Node {
  public:
    struct Ports {
        ValueId out;     // (tokens, width)
        ValueId tokens;  // ids
        ParameterId table;
        int64_t table_rows;
        ValueId positions = kNoValue;  // ids, with their table
        ParameterId position_table = kNoParameter;
        int64_t position_rows = 0;
        SignPorts signs = {};
    };
    explicit Embedding(const Ports& ports, const SharedTable& shared = {});
    const char* kind() const override { return "embedding"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out out_;
    const In tokens_, positions_, sign_bits_, sign_row_;
    const Par table_, position_table_;
    const SharedTable shared_;
};

// out[t] = x[t] + Σ_n table[rows_n[t]], in place: n-grams, all in one table, each row with the token's signs.
class NgramEmbedding final : public Node {
  public:
    struct Ports {
        ValueId out;                // (tokens, width), a view of x
        ValueId x;                  // (tokens, width)
        std::vector<ValueId> rows;  // ids
        ParameterId table;
        int64_t table_rows;
        SignPorts signs = {};
    };
    struct Options {
        int64_t num_tokens;
        SharedTable shared;  // by columns, if at all
    };
    NgramEmbedding(const Ports& ports, const Options& options);
    const char* kind() const override { return "n-gram embedding"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out out_;
    const In x_, sign_bits_, sign_row_;
    const Par table_;
    const Tmp gathered_;
    const SharedTable shared_;
    std::vector<In> rows_;
};

}  // namespace speedrun
