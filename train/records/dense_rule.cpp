#include "train/records/dense_rule.h"

#include <fmt/core.h>

#include <set>

#include "train/model/build_model.h"
#include "train/model/nodes/embedding.h"

namespace speedrun {

namespace {

constexpr const char* kAllowed =
    "a dense class allows tables with one row per token of the vocabulary or per position";

// Batch inputs of a dense model.
struct BatchValues {
    std::set<ValueId> tokens;     // indices of tables
    std::set<ValueId> positions;  // indices of tables, and attention masks
    std::set<ValueId> of_loss;
};

BatchValues batch_values(const ModelGraph& model) {
    BatchValues values;
    values.of_loss.insert(model.loss_weights);
    for (const ColumnInput& input : model.inputs) {
        switch (input.column.kind) {
            case ColumnKind::token:
                values.tokens.insert(input.value);
                break;
            case ColumnKind::position:
                values.positions.insert(input.value);
                break;
            case ColumnKind::target:
                values.of_loss.insert(input.value);
                break;
            case ColumnKind::hash:
                break;
        }
    }
    return values;
}

// Allowed constants are a one and the position angles.
bool is_known_constant(const Value& value) {
    if (!value.integers.empty()) return false;
    if (value.numel() == 1) return true;
    return value.extents.size() == 2 && value.extents[0].dimension == Dimension::positions &&
           value.extents[1].dimension == Dimension::half_head;
}

std::string input_problem(const ModelGraph& model, const BatchValues& known) {
    for (size_t i = 0; i < model.graph.values().size(); ++i) {
        const Value& value = model.graph.values()[i];
        const auto id = static_cast<ValueId>(i);
        const bool is_known =
            known.tokens.count(id) + known.positions.count(id) + known.of_loss.count(id) > 0;
        if (value.holder == Holder::batch && !is_known)
            return fmt::format("model: it reads '{}', which is neither tokens nor positions; {}", value.name,
                               kAllowed);
        if (value.holder == Holder::constant && !is_known_constant(value))
            return fmt::format("model: the constant '{}' is no weight; {}", value.name, kAllowed);
    }
    return "";
}

// Rows of a table indexed by tokens or positions.
std::string table_problem(const Parameter& table, int64_t padded_vocab_size) {
    const Dimension rows = table.dimensions.front();
    const int64_t count = table.whole_shape().front();
    if (rows == Dimension::positions) return "";
    if (count == padded_vocab_size) return "";
    return fmt::format("model: {} has {} rows, the vocabulary has {}; {}", table.name, count,
                       padded_vocab_size, kAllowed);
}

std::string node_problem(const ModelGraph& model, const Node& node, const BatchValues& known,
                         int64_t padded_vocab_size) {
    const bool looks_up = dynamic_cast<const Embedding*>(&node) != nullptr;
    for (const Node::Read& read : node.reads()) {
        const Value& value = model.graph[read.value];
        if (value.element != Element::ids || known.positions.count(read.value) > 0) continue;
        const bool fits = known.tokens.count(read.value) > 0 ? looks_up : &node == model.head;
        if (!fits)
            return fmt::format("model: '{}' reads '{}'; {}", node.describe(model.graph), value.name,
                               kAllowed);
    }
    for (const Node::Write& write : node.writes()) {
        if (model.graph[write.value].element == Element::ids)
            return fmt::format("model: '{}' computes ids of rows; {}", node.describe(model.graph), kAllowed);
    }
    if (!looks_up) return "";
    for (const Node::Use& use : node.uses()) {
        std::string problem = table_problem(model.table[use.parameter], padded_vocab_size);
        if (!problem.empty()) return problem;
    }
    return "";
}

}  // namespace

std::string dense_problem(const ModelGraph& model, int64_t padded_vocab_size) {
    const BatchValues known = batch_values(model);
    std::string problem = input_problem(model, known);
    for (const auto& node : model.graph.nodes()) {
        if (!problem.empty()) break;
        problem = node_problem(model, *node, known, padded_vocab_size);
    }
    return problem;
}

std::string dense_problem(const ModelConfig& config, int64_t longest_sequence) {
    if (!config.init_from.empty())
        return fmt::format("model.init_from: '{}'; a dense class starts from random weights",
                           config.init_from);
    for (const auto& [name, table] : config.parts.tables) {
        if (table.rows == TableRows::tokens || table.rows == TableRows::positions) continue;
        return fmt::format("model.tables.{}.rows: '{}'; {}", name, word_of(table.rows), kAllowed);
    }
    const BatchShape batch{.tokens = longest_sequence, .sequence_length = longest_sequence};
    return dense_problem(build_model(config.in_stage(0), batch, {.logit_rows = batch.tokens}),
                         config.padded_vocab_size());
}

}  // namespace speedrun
