// Lookups in tables of rows.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// A table with rows or columns split over the tensor axis. Each rank's lookup is a term of the sum over ranks, 0
// for rows or columns of others. Ids of other ranks' rows equal the number of rows of this rank.
struct SharedTable {
    bool shares_rows = false;
    // false: another rank adds the positions; all ranks compute their gradient
    bool adds_positions = true;
    int64_t first_column = 0, columns = 0;  // columns of the embedding held by this rank; 0: all

    Tensor own_columns(const Tensor& rows) const {
        return columns == 0 ? rows : rows.column_slice(first_column, columns);
    }
};

// Signs that multiply looked-up rows (op::RowSigns); no values: none.
struct SignPorts {
    ValueId bits = kNoValue;  // ids (rows, words)
    ValueId row = kNoValue;   // ids (tokens)
};

// out[t] = table[tokens[t]] (+ position_table[positions[t]]); with signs, s[t] ⊙ table[tokens[t]].
class Embedding final : public Node {
  public:
    struct Ports {
        ValueId out;     // (tokens, width)
        ValueId tokens;  // ids
        ParameterId table;
        int64_t table_rows;
        ValueId positions = kNoValue;  // ids into position_table
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

// out[t] = x[t] + Σ_n table[rows_n[t]], in place: n-grams share one table; each row is multiplied by the token's signs.
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
        SharedTable shared;  // only columns may be split
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
