#include "train/model/parts/qk_norm.h"

#include "train/model/attention_layer.h"
#include "train/model/parts/rotary.h"

namespace speedrun {

void QkNormPart::build(AttentionLayer& layer) const {
    if (layer.config.parts.find<RotaryPart>()) return;  // its operation normalises too
    layer.at(AttentionSlot::rotate, [&a = layer] { RotaryPart::write(a, nullptr); });
}

}  // namespace speedrun
