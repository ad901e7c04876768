#include "train/model/nodes/norm.h"

#include "train/config/choices.h"
#include "train/model/graph/graph.h"

namespace speedrun {

std::string described_epsilon(float epsilon) {
    return epsilon == kNormEpsilon ? "" : fmt::format(", epsilon {:.2g}", epsilon);
}

Add::Add(const Ports& ports)
    : Node(Cost::pointwise),
      sum(writes({.value = ports.sum})),
      x(reads({.value = ports.x, .gradient = GradientRule::passed})),
      delta(reads({.value = ports.delta, .gradient = GradientRule::passed})) {}

void Add::forward(const Call& call) const {
    call.ops.add({.y = call(sum), .x = call(x), .z = call(delta)}, call.stream);
}

Norm::Norm(const Ports& ports, NormKind kind, float epsilon)
    : Node(Cost::pointwise),
      y(writes({.value = ports.y})),
      mean(writes({.value = ports.statistics.mean, .in_backward = true})),
      rstd(writes({.value = ports.statistics.rstd, .in_backward = true})),
      amax(writes({.value = ports.amax})),
      x(reads({.value = ports.x, .gradient = GradientRule::plus, .in_backward = true, .in_place = true})),
      gain(uses(ports.parameters.gain, true)),
      bias(uses(ports.parameters.bias, false)),
      kind_(kind),
      epsilon_(epsilon) {}

std::string Norm::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{}{}{}{}", word_of(kind_), gain.index >= 0 ? ", gain" : "",
                       bias.index >= 0 ? ", bias" : "", described_epsilon(epsilon_));
}

void Norm::forward_of(const Call& call, const Call* add_call, const Add* add) const {
    call.ops.norm_forward({.y = call(y),
                           .sum = add ? (*add_call)(add->sum) : Tensor{},
                           .mean = call(mean),
                           .rstd = call(rstd),
                           .amax = amax_in(call),
                           .x = add ? (*add_call)(add->x) : call(x),
                           .delta = add ? (*add_call)(add->delta) : Tensor{},
                           .gain = call(gain),
                           .bias = call(bias),
                           .kind = kind_,
                           .epsilon = epsilon_},
                          call.stream);
}

void Norm::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x);
    contribute(
        [&](const ParameterGradient& dgain, const ParameterGradient& dbias) {
            call.ops.norm_backward({.ds = dx.tensor,
                                    .dgain = dgain.tensor,
                                    .dbias = dbias.tensor,
                                    .dy = call.gradient(y),
                                    .s = call(x),
                                    .mean = call(mean),
                                    .rstd = call(rstd),
                                    .gain = call(gain),
                                    .dresidual = dx.other,
                                    .accumulate = dgain.adds,
                                    .kind = kind_},
                                   call.stream);
        },
        call.of(gain), call.of(bias));
}

}  // namespace speedrun
