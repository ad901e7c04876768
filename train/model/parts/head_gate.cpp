#include "train/model/parts/head_gate.h"

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/model/attention_layer.h"

namespace speedrun {

namespace {

constexpr const char* kHeadGate = "attn.gate";

}  // namespace

void HeadGatePart::fields(FieldVisitor& v) {
    v.field("columns", columns, "first columns of the normed stream that the gate reads", {1, kMaxNarrow});
    v.field(
        "network", network,
        "name in model.networks of the hyper-network (MUDD-like) that computes an unbounded factor per head; "
        "empty: sigmoid gate");
    v.field("start", start, "initial factor, with a network", {-1e6, 1e6});
}

void HeadGatePart::check(const AttentionScope& scope) const {
    if (!network.empty()) return;
    if (start != kStart)
        throw_usage("{}.start {}: a sigmoid gate starts at {}; name a network that computes it", scope.key,
                    start, kStart);
    scope.check_columns("columns", columns);
    if (scope.attention.heads > kMaxNarrow)
        throw_usage("{}: {} heads, gates are for at most {}", scope.key, scope.attention.heads, kMaxNarrow);
}

std::vector<TokenFactor> HeadGatePart::numbers() const {
    return {{.network = network, .name = kHeadGate, .start = start, .by_heads = true}};
}

void HeadGatePart::build(AttentionLayer& layer) const {
    // Before the projection: its backward writes the whole gradient of the input, that of the gate adds to some columns.
    const ValueId gates =
        network.empty()
            ? layer.w.gate(kHeadGate, layer.normed, layer.heads, columns,
                           "W: the output of head h is multiplied by sigmoid(W[h] . x[0:columns]), x normed")
            : layer.networks.by_heads(kHeadGate, layer.heads);
    layer.at(AttentionSlot::output, [&a = layer, gates] {
        a.out = a.w.sum("gated attn_out", a.head_width(), {{.value = a.out, .gate = gates}});
    });
}

}  // namespace speedrun
