#include "train/model/parts/paired_heads.h"

#include "data/columns/pairs.h"
#include "kernels/device/error.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/attention.h"
#include "train/model/nodes/copy.h"
#include "train/model/parts/key_offset.h"

namespace speedrun {

namespace {

// Returns x, or a contiguous copy if x is a view.
ValueId without_gaps(AttentionLayer& a, ValueId x) {
    if (!a.w.model.graph[x].is_view) return x;
    const ValueId y = a.w.compute_value("copied " + a.w.model.graph.local_name(x), a.w.extents.tokens(),
                                        a.w.model.graph[x].extents.back());
    a.w.add<Copy>({.y = y, .x = x});
    return y;
}

}  // namespace

void PairedHeadsPart::check(const AttentionScope& scope) const {
    if (scope.attention.heads % 2 != 0)
        throw_usage("{}: heads {} cannot be paired, expected an even number", scope.key,
                    scope.attention.heads);
    if (scope.attention.parts.find<KeyOffsetPart>())
        throw_usage(
            "{}: not with key_offset, which would read the previous row from another head: set one of them to false",
            scope.key);
}

void PairedHeadsPart::build(AttentionLayer& layer) const {
    layer.at(AttentionSlot::layout, [&a = layer] {
        for (ValueId* const x : {&a.q, &a.k, &a.v}) *x = without_gaps(a, *x);
    });
    layer.at(AttentionSlot::attend, [&a = layer] {
        AttentionOptions options = a.options;
        a.out = a.head_rows("attn_out");
        const ValueId lse = a.w.f32("lse", {{a.heads.dimension, options.num_heads}, a.w.extents.tokens()});
        options.sequence_length *= 2;
        options.num_heads /= 2;
        a.w.add<Attention>({.out = a.out,
                            .lse = lse,
                            .q = a.q,
                            .k = a.k,
                            .v = a.v,
                            .first_key = a.w.input(paired_first_key_column())},
                           options, int64_t{2});
    });
}

}  // namespace speedrun
