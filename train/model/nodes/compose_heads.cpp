#include "train/model/nodes/compose_heads.h"

#include "train/model/graph/graph.h"

namespace speedrun {

ComposeHeads::ComposeHeads(const Ports& ports, const ComposeHeadsOptions& options)
    : Node(Cost::product),
      c_(writes({.value = ports.c})),
      q_(reads({.value = ports.q, .gradient = GradientRule::added, .in_backward = true})),
      k_(reads({.value = ports.k, .gradient = GradientRule::added, .in_backward = true})),
      v_(reads({.value = ports.v, .gradient = GradientRule::added, .in_backward = true})),
      first_key_(reads({.value = ports.first_key, .in_backward = true})),
      token_w1_(reads({.value = ports.token_w1, .gradient = GradientRule::added, .in_backward = true})),
      token_w2_(reads({.value = ports.token_w2, .gradient = GradientRule::added, .in_backward = true})),
      w1_(uses(ports.w1, true)),
      w2_(uses(ports.w2, true)),
      options_(options) {}

std::string ComposeHeads::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("composed heads {} x {}, {} keys", options_.num_heads, options_.head_dim,
                       options_.keys);
}

void ComposeHeads::forward(const Call& call) const {
    call.ops.compose_heads_forward({.c = call(c_),
                                    .q = call(q_),
                                    .k = call(k_),
                                    .v = call(v_),
                                    .first_key = call(first_key_),
                                    .w1 = weight(call, w1_, token_w1_),
                                    .w2 = weight(call, w2_, token_w2_),
                                    .options = options_},
                                   call.stream);
}

void ComposeHeads::backward(const Call& call) const {
    const ValueGradient dq = call.gradient(q_), dk = call.gradient(k_), dv = call.gradient(v_),
                        of_w1 = call.gradient(token_w1_), of_w2 = call.gradient(token_w2_);
    contribute(
        [&](const ParameterGradient& all_w1, const ParameterGradient& all_w2) {
            const bool shared_w1 = w1_.index >= 0, shared_w2 = w2_.index >= 0;
            call.ops.compose_heads_backward({.dq = dq.tensor,
                                             .dk = dk.tensor,
                                             .dv = dv.tensor,
                                             .dw1 = shared_w1 ? all_w1.tensor : of_w1.tensor,
                                             .dw2 = shared_w2 ? all_w2.tensor : of_w2.tensor,
                                             .dc = call.gradient(c_),
                                             .q = call(q_),
                                             .k = call(k_),
                                             .v = call(v_),
                                             .first_key = call(first_key_),
                                             .w1 = weight(call, w1_, token_w1_),
                                             .w2 = weight(call, w2_, token_w2_),
                                             .accumulate_q = dq.adds,
                                             .accumulate_k = dk.adds,
                                             .accumulate_v = dv.adds,
                                             .accumulate_w1 = shared_w1 ? all_w1.adds : of_w1.adds,
                                             .accumulate_w2 = shared_w2 ? all_w2.adds : of_w2.adds,
                                             .options = options_},
                                            call.stream);
        },
        call.of(w1_), call.of(w2_));
}

}  // namespace speedrun
