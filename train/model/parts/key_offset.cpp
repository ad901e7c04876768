#include "train/model/parts/key_offset.h"

#include "kernels/device/error.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/key_offset.h"
#include "train/model/parts/rotary.h"

namespace speedrun {

void KeyOffsetPart::check(const AttentionScope& scope) const {
    const RotaryPart* const rotary = scope.attention.parts.find<RotaryPart>();
    const int64_t pairs = scope.head_pairs(), rotated = rotary ? rotary->rotated_pairs(pairs) : 0;
    if (rotated > 0 && rotated < pairs) return;
    throw_usage(
        "{}: rotary rotates {} of {} pairs of a head's dimensions, expected some but not all: the others are taken "
        "from the previous token. Set for example \"rotary\": {{\"fraction\": 0.5}}",
        scope.key, rotated, pairs);
}

void KeyOffsetPart::build(AttentionLayer& layer) const {
    layer.at(AttentionSlot::keys, [&a = layer] {
        const ValueId y = a.w.compute_value("offset k", a.w.extents.tokens(), a.qk_width());
        const int64_t D = a.qk_dim();
        a.w.add<KeyOffset>(
            {.y = y, .k = a.k},
            KeyOffsetOptions{.num_heads = a.heads.size,
                             .head_dim = D,
                             .rotated_pairs = a.config.parts.find<RotaryPart>()->rotated_pairs(D / 2),
                             .sequence_length = a.w.batch.sequence_length},
            a.w.extents.chunk_borders(a.qk_width()));
        a.k = y;
    });
}

}  // namespace speedrun
