#include "train/model/parts/exclude_own_value.h"

#include "train/model/attention_layer.h"
#include "train/model/nodes/own_value.h"

namespace speedrun {

namespace {

constexpr const char* kOwnValue = "attn.own_value";

}  // namespace

void ExcludeOwnValuePart::fields(FieldVisitor& v) {
    v.field("start", start, "initial a of each head; tanh(a) is the share", {-20, 20});
    v.field("network", network, kNetworkHelp);
}

std::vector<TokenFactor> ExcludeOwnValuePart::numbers() const {
    return {{.network = network, .name = kOwnValue, .start = start, .by_heads = true, .order = -1}};
}

void ExcludeOwnValuePart::build(AttentionLayer& layer) const {
    layer.at(AttentionSlot::output, [this, &a = layer] {
        const ValueId y = a.head_rows("attn_out without own value");
        ExcludeOwnValue::Ports ports{.y = y, .o = a.out, .v = a.v};
        if (network.empty())
            ports.alpha =
                a.w.parameter(kOwnValue, {a.heads},
                              {GraphWriter::filled(start),
                               "a: output y of a head -= tanh(a) (y.v)/(v.v) v, with v the token's own"});
        else
            ports.token_alpha = a.networks.by_heads(kOwnValue, a.heads);
        a.w.add<ExcludeOwnValue>(ports);
        a.out = y;
    });
}

}  // namespace speedrun
