#include "train/model/parts/value_gate.h"

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/pair_gate.h"

namespace speedrun {

namespace {

constexpr const char* kValueGate = "attn.value_gate";

}  // namespace

void ValueGatePart::fields(FieldVisitor& v) {
    v.field(
        "columns", columns,
        "number of first columns, of attention's normed input and of the row, that the gate 2*sigmoid reads; initial gate 1",
        {1, kMaxNarrow / 2});
    v.field(
        "network", network,
        "name in model.networks of the hyper-network (MUDD-like) that computes one gate per half of the heads; "
        "empty: sigmoid gates");
    v.field("start", start, "initial gates, with a network", {-1e6, 1e6});
}

void ValueGatePart::check(const AttentionScope& scope) const {
    const AttentionConfig& attention = scope.attention;
    if (attention.value_table.empty())
        throw_usage("{}: there are no rows that it could weigh, name a value_table", scope.key);
    if (attention.value_start != AttentionConfig::kValueStart && !attention.value_scale)
        throw_usage("{}: value_start {}: with a value_gate v has no factor, unless value_scale is true",
                    scope.key, attention.value_start);
    if (network.empty()) {
        if (start != kStart)
            throw_usage("{}.start {}: a gate by sigmoid starts at {}; name a network that computes it",
                        scope.key, start, kStart);
        if (attention.heads > kMaxNarrow)
            throw_usage("{}: {} heads, gates are for at most {}", scope.key, attention.heads, kMaxNarrow);
    } else if (attention.heads % 2 != 0) {
        throw_usage("{}.network: {} heads have no halves, of which it computes a gate each", scope.key,
                    attention.heads);
    }
    scope.check_columns("columns", columns);
    if (const int64_t row = value_table_columns(scope.model, attention.value_table, scope.model_dim);
        columns > row)
        throw_usage("{}.columns {} exceeds the {} columns of rows of \"{}\"", scope.key, columns, row,
                    attention.value_table);
}

std::vector<TokenFactor> ValueGatePart::numbers() const {
    return {{.network = network, .name = kValueGate, .start = start, .by_heads = false, .count = 2}};
}

void ValueGatePart::build(AttentionLayer& a) const {
    a.value_rows = a.tables.lookup("value_embedding", a.config.value_table);
    ValueId gates = kNoValue;
    if (network.empty()) {
        gates = a.w.f32(kValueGate, {a.w.extents.tokens(), a.heads});
        a.w.add<PairGate>({.y = gates,
                           .x = a.normed,
                           .z = a.value_rows,
                           .weight = a.w.parameter(
                               "attn.value_gate.weight", {a.heads, {Dimension::numbers, 2 * columns}},
                               {GraphWriter::filled(0),
                                "W: head h of v += 2 sigmoid(W[h] . [x[0:columns], row[0:columns]]) row"})},
                          PairGate::Options{.tokens = a.w.extents.tokens().size, .columns = columns});
    } else {
        gates = a.networks.number(kValueGate);
    }
    a.at(AttentionSlot::values,
         [&a, gates] { a.value_terms.push_back({.value = a.rows_of_v(a.value_rows), .gate = gates}); });
}

}  // namespace speedrun
