// Look-ups in tables of rows.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// out[t] = table[tokens[t]] (+ position_table[positions[t]]).
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
    };
    explicit Embedding(const Ports& ports);
    const char* kind() const override { return "embedding"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out out_;
    const In tokens_, positions_;
    const Par table_, position_table_;
};

// out[t] = x[t] + Σ_n table[rows_n[t]], in place: n-grams, all in one table.
class NgramEmbedding final : public Node {
  public:
    struct Ports {
        ValueId out;                // (tokens, width), a view of x
        ValueId x;                  // (tokens, width)
        std::vector<ValueId> rows;  // ids
        ParameterId table;
        int64_t table_rows;
    };
    // x is (num_tokens, width).
    NgramEmbedding(const Ports& ports, int64_t num_tokens, int64_t width);
    const char* kind() const override { return "n-gram embedding"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out out_;
    const In x_;
    const Par table_;
    const Tmp gathered_;
    std::vector<In> rows_;
};

}  // namespace speedrun
