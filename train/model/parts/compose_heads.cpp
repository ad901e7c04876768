#include "train/model/parts/compose_heads.h"

#include "kernels/device/error.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/compose_heads.h"
#include "train/model/parts/paired_heads.h"

namespace speedrun {

namespace {

constexpr const char *kComposedMaps = "attn.composed_maps", *kComposedOutput = "attn.composed_output";

}  // namespace

void ComposeHeadsPart::fields(FieldVisitor& v) {
    v.field("keys", keys,
            "number of last keys of the document, including the query's own, that the maps cover",
            {1, ComposeHeadsOptions::kMaxKeys});
    v.field("maps_start", maps_start,
            "initial weight of each head's map in the mix; the weights are RMS-normalised over heads",
            {-1e6, 1e6});
    v.field("output_start", output_start,
            "initial factor of the mixed map times the head's values, added to the head's output",
            {-1e6, 1e6});
    v.field("network", network, kNetworkHelp);
}

void ComposeHeadsPart::check(const AttentionScope& scope) const {
    if (scope.attention.parts.find<PairedHeadsPart>())
        throw_usage("{}: not with paired, where a token has two positions in a row: remove one of them",
                    scope.key);
    const int64_t qk = scope.attention.qk_dim(scope.model_dim), v = scope.attention.v_dim(scope.model_dim);
    if (qk != v)
        throw_usage(
            "{}: heads of q and k have {} dimensions and heads of v {}: set qk_head_dim and v_head_dim to one value",
            scope.key, qk, v);
    if (maps_start == 0)
        throw_usage(
            "{}.maps_start is 0: all-zero weights cannot be RMS-normalised; set a value, "
            "such as 1",
            scope.key);
}

std::vector<TokenFactor> ComposeHeadsPart::numbers() const {
    return {{.network = network, .name = kComposedMaps, .start = maps_start, .by_heads = true},
            {.network = network, .name = kComposedOutput, .start = output_start, .by_heads = true}};
}

void ComposeHeadsPart::build(AttentionLayer& layer) const {
    // Runs before attention, so that its backward adds to gradients of q, k and v that attention has already written.
    layer.at(AttentionSlot::before, [this, &a = layer] {
        const ValueId c = a.head_rows("composed heads");
        ComposeHeads::Ports ports{
            .c = c, .q = a.q, .k = a.k, .v = a.v, .first_key = a.w.input(first_key_column())};
        if (network.empty()) {
            ports.w1 = a.w.parameter(
                kComposedMaps, {a.heads},
                {GraphWriter::filled(maps_start),
                 "a: weights of the heads' attention maps in the mix, RMS-normalised over heads"});
            ports.w2 = a.w.parameter(kComposedOutput, {a.heads},
                                     {GraphWriter::filled(output_start),
                                      "b: output of a head += b times the mixed map applied to its values"});
        } else {
            ports.token_w1 = a.networks.by_heads(kComposedMaps, a.heads);
            ports.token_w2 = a.networks.by_heads(kComposedOutput, a.heads);
        }
        a.w.add<ComposeHeads>(ports,
                              ComposeHeadsOptions{.sequence_length = a.options.sequence_length,
                                                  .num_heads = a.options.num_heads,
                                                  .head_dim = a.options.head_dim,
                                                  .keys = keys,
                                                  .scale = a.options.scale,
                                                  .epsilon = static_cast<float>(a.model.norms.epsilon)});
        a.at(AttentionSlot::attended, [&a, c] {
            a.out = a.w.sum("attn_out with composed heads", a.head_width(), {{.value = a.out}, {.value = c}});
        });
    });
}

}  // namespace speedrun
