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
    v.field("keys", keys, "last keys of the document, the query's own included, that the maps are of",
            {1, ComposeHeadsOptions::kMostKeys});
    v.field("maps_start", maps_start,
            "weight of each head's map in the mix at the start; the weights are RMS-normalised over heads",
            {-1e6, 1e6});
    v.field("output_start", output_start,
            "factor at the start by which each head's output gets its values seen through the mix",
            {-1e6, 1e6});
    v.field("network", network, kNetworkHelp);
}

void ComposeHeadsPart::check(const AttentionScope& scope) const {
    if (scope.attention.parts.find<PairedHeadsPart>())
        throw_usage(
            "{}: not with paired, where a token's heads have two places in a row: leave one of them out",
            scope.key);
    if (maps_start == 0)
        throw_usage(
            "{}.maps_start is 0: weights that are all zero have no direction to be normalised to; give it a value, "
            "such as 1",
            scope.key);
}

std::vector<TokenNumber> ComposeHeadsPart::numbers() const {
    return {{.network = network, .name = kComposedMaps, .start = maps_start, .by_heads = true},
            {.network = network, .name = kComposedOutput, .start = output_start, .by_heads = true}};
}

void ComposeHeadsPart::build(AttentionLayer& layer) const {
    // Backward then adds to the gradients of q, k and v that attention has written.
    layer.at(AttentionSlot::before, [this, &a = layer] {
        const ValueId c = a.head_rows("composed heads");
        ComposeHeads::Ports ports{
            .c = c, .q = a.q, .k = a.k, .v = a.v, .first_key = a.w.input(first_key_column())};
        if (network.empty()) {
            ports.w1 =
                a.w.parameter(kComposedMaps, {a.heads},
                              {GraphWriter::filled(maps_start),
                               "a: the heads' maps of attention are mixed by a, RMS-normalised over heads"});
            ports.w2 = a.w.parameter(
                kComposedOutput, {a.heads},
                {GraphWriter::filled(output_start),
                 "b: to the output of a head is added b times its values, seen through that mix"});
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
