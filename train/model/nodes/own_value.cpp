#include "train/model/nodes/own_value.h"

#include "train/model/graph/graph.h"

namespace speedrun {

ExcludeOwnValue::ExcludeOwnValue(const Ports& ports)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y})),
      o_(reads({.value = ports.o, .gradient = GradientRule::written, .in_backward = true, .in_place = true})),
      v_(reads({.value = ports.v, .gradient = GradientRule::added, .in_backward = true})),
      token_alpha_(reads({.value = ports.token_alpha, .gradient = GradientRule::added, .in_backward = true})),
      alpha_(uses(ports.alpha, true)) {}

std::string ExcludeOwnValue::describe(const NodeGraph& graph) const {
    return fmt::format("{} without its share of {}", graph.local_name(value_of(o_)),
                       graph.local_name(value_of(v_)));
}

Tensor ExcludeOwnValue::alpha_of(const Call& call) const {
    return alpha_.index >= 0 ? call(alpha_) : call(token_alpha_);
}

void ExcludeOwnValue::forward(const Call& call) const {
    call.ops.exclude_own_value_forward({.y = call(y_), .o = call(o_), .v = call(v_), .alpha = alpha_of(call)},
                                       call.stream);
}

void ExcludeOwnValue::backward(const Call& call) const {
    const ValueGradient dv = call.gradient(v_), of_tokens = call.gradient(token_alpha_);
    contribute(
        [&](const ParameterGradient& of_all) {
            const bool all = alpha_.index >= 0;
            call.ops.exclude_own_value_backward({.d_o = call.gradient(o_).tensor,
                                                 .dv = dv.tensor,
                                                 .dalpha = all ? of_all.tensor : of_tokens.tensor,
                                                 .dy = call.gradient(y_),
                                                 .o = call(o_),
                                                 .v = call(v_),
                                                 .alpha = alpha_of(call),
                                                 .accumulate_v = dv.adds,
                                                 .accumulate_alpha = all ? of_all.adds : of_tokens.adds},
                                                call.stream);
        },
        call.of(alpha_));
}

}  // namespace speedrun
