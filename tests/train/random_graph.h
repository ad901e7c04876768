// Random graphs and their gradients in float64 by a plain chain rule: one gradient per value, summed over its
// readers. Reference for the derivation's sharing, in-place accumulation, fusion and recomputation.
#pragma once

#include <random>
#include <set>
#include <utility>

#include "tests/reference/reference.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/head.h"
#include "train/model/nodes/norm.h"

namespace speedrun::testing {

struct RandomGraph {
    static constexpr int64_t kTokens = 16, kWidth = 8, kVocabulary = 24;
    static constexpr int64_t kSequence = 8, kHeads = 2, kGateColumns = 3;

    explicit RandomGraph(uint64_t seed);

    NodeGraph graph;
    ParameterTable table;
    ValueId tokens = 0, targets = 0, losses = 0;
    reference::Indices token_ids, target_ids;
    std::vector<reference::Matrix> parameters;  // indexed by id

    // Gradients of the sum of all losses, by parameter.
    std::vector<reference::Matrix> gradients() const;

  private:
    enum class Kind : uint8_t {
        embedding,
        linear,
        activation,
        square,
        norm,
        sum_norm,
        weighted,
        injected,
        add
    };
    struct Operation {
        Kind kind;
        std::vector<ValueId> reads, writes;
        std::vector<ParameterId> parameters;
    };
    ParameterId declare(const std::string& name, const std::vector<Extent>& extents, double mean);
    ValueId value(const char* name);
    void norm(Norm::Ports ports);  // with statistics of its own
    ValueId any_value();
    // Adds gates of these columns, computed from `of`, with a weight that `operation` owns.
    ValueId gate(Operation& operation, ValueId of, int64_t columns);
    void append(Kind kind);
    void inject(ValueId x);
    void record(const Operation& operation);
    void embed();
    void add_up();

    std::mt19937_64 random_;
    std::vector<Operation> operations_;
    std::vector<ValueId> values_, unread_;
    std::vector<ParameterId> weights_;
    std::set<std::pair<ValueId, ParameterId>> made_;  // inputs and weights of linear nodes and activations
    ParameterId table_ = 0, head_ = 0;
    ValueId last_ = 0;
};

}  // namespace speedrun::testing
