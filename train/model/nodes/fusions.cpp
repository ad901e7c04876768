#include "train/model/nodes/fusions.h"

#include <utility>

#include "train/model/graph/graph.h"
#include "train/model/nodes/activation.h"
#include "train/model/nodes/attention.h"
#include "train/model/nodes/linear.h"
#include "train/model/nodes/norm.h"
#include "train/model/nodes/redistribute.h"
#include "train/model/nodes/weighted_sum.h"

namespace speedrun {

namespace {

// Returns the node at this index if it is a T, otherwise null.
template <class T>
const T* node_at(std::span<const Node* const> nodes, size_t place) {
    return place < nodes.size() ? dynamic_cast<const T*>(nodes[place]) : nullptr;
}
template <class T>
const T& node_of(const Call& call) {
    return static_cast<const T&>(call.node());
}

class AddThenNorm final : public Fusion {
  public:
    size_t matches(const NodeGraph& /*graph*/, std::span<const Node* const> nodes) const override {
        const auto* const add = node_at<Add>(nodes, 0);
        const auto* const norm = node_at<Norm>(nodes, 1);
        return add && norm && norm->value_of(norm->x) == add->value_of(add->sum) ? 2 : 0;
    }
    void forward(std::span<const Call> calls) const override {
        node_of<Norm>(calls[1]).forward_of(calls[1], &calls[0], &node_of<Add>(calls[0]));
    }
};

class SumThenNorm : public Fusion {
  public:
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const sum = node_at<WeightedSum>(nodes, 0);
        const auto* const norm = node_at<Norm>(nodes, 1);
        const bool match = sum && norm && norm->value_of(norm->x) == sum->value_of(sum->y) &&
                           !graph[sum->value_of(sum->y)].is_view;
        return match ? 2 : 0;
    }
    void forward(std::span<const Call> calls) const override { enqueue(nullptr, calls[0], calls[1]); }
    static void enqueue(const Call* add_call, const Call& sum_call, const Call& norm_call);
};

// add_call: the sum of two values that is the first term, or null.
void SumThenNorm::enqueue(const Call* add_call, const Call& sum_call, const Call& norm_call) {
    const auto& sum = node_of<WeightedSum>(sum_call);
    const auto& norm = node_of<Norm>(norm_call);
    const Add* const add = add_call ? &node_of<Add>(*add_call) : nullptr;
    norm_call.ops.sum_norm_forward({.y = norm_call(norm.y),
                                    .sum = sum_call(sum.y),
                                    .mean = norm_call(norm.mean),
                                    .rstd = norm_call(norm.rstd),
                                    .amax = norm.amax_in(norm_call),
                                    .terms = sum.terms_of(sum_call),
                                    .sequence_length = sum.sequence_length(),
                                    .x = add ? (*add_call)(add->x) : Tensor(),
                                    .delta = add ? (*add_call)(add->delta) : Tensor(),
                                    .gain = norm_call(norm.gain),
                                    .bias = norm_call(norm.bias),
                                    .kind = norm.norm_kind(),
                                    .epsilon = norm.epsilon()},
                                   norm_call.stream);
}

// SumThenNorm with backward in one operation: the stream plus a sublayer's output and injected values.
class JoinThenNorm final : public SumThenNorm {
  public:
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const sum = node_at<WeightedSum>(nodes, 0);
        return sum && sum->is_by_rows(graph) ? SumThenNorm::matches(graph, nodes) : 0;
    }
    bool has_backward() const override { return true; }
    void backward(std::span<const Call> calls) const override;
};

void JoinThenNorm::backward(std::span<const Call> calls) const {
    const Call &sum_call = calls[0], &norm_call = calls[1];
    const auto& norm = node_of<Norm>(norm_call);
    node_of<WeightedSum>(sum_call).contributions(
        sum_call, [&](const TermGradients& gradients, const WeightedTerms& terms) {
            contribute(
                [&](const ParameterGradient& dgain, const ParameterGradient& dbias) {
                    norm_call.ops.sum_norm_backward(
                        {.gradients = gradients,
                         .dgain = dgain.tensor,
                         .dbias = dbias.tensor,
                         .dy = norm_call.gradient(norm.y),
                         .s = norm_call(norm.x),
                         .terms = terms,
                         .mean = norm_call(norm.mean),
                         .rstd = norm_call(norm.rstd),
                         .gain = norm_call(norm.gain),
                         .dresidual = norm_call.gradient(norm.x).other,
                         .dsum = sum_call.shares() ? norm_call.gradient(norm.x).tensor : Tensor(),
                         .accumulate = dgain.adds,
                         .kind = norm.norm_kind()},
                        norm_call.stream);
                },
                norm_call.of(norm.gain), norm_call.of(norm.bias));
        });
}

class AddMixThenNorm final : public Fusion {
  public:
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const add = node_at<Add>(nodes, 0);
        const auto* const mix = node_at<WeightedSum>(nodes, 1);
        const bool match = add && mix && mix->is_mix() &&
                           mix->value_of(mix->first()) == add->value_of(add->sum) &&
                           SumThenNorm().matches(graph, nodes.subspan(1)) > 0;
        return match ? 3 : 0;
    }
    void forward(std::span<const Call> calls) const override {
        SumThenNorm::enqueue(&calls[0], calls[1], calls[2]);
    }
};

// A mix of values, and rotary of queries and keys.
class MixAndRotary final : public Fusion {
  public:
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const mix = node_at<WeightedSum>(nodes, 0);
        const auto* const rotary = node_at<QkNormRotary>(nodes, 1);
        const bool match =
            rotary && mix && mix->is_mix() && rotary->fits_mix_of(graph.width_of(mix->value_of(mix->y)));
        return match ? 2 : 0;
    }
    void forward(std::span<const Call> calls) const override {
        const Call& call = calls[0];
        const auto& mix = node_of<WeightedSum>(call);
        node_of<QkNormRotary>(calls[1]).enqueue(
            calls[1], {call(mix.y), call(mix.first()), {call(mix.second()), call(mix.coefficients())}});
    }
};

// True if these are relu² and the linear that reads it.
bool reads_square(const Activate* activate, const Linear* linear) {
    return activate && linear && activate->squares() && linear->x() == activate->value_of(activate->y);
}

// A linear and relu², which overwrites its output; and the FP8 linear that reads it, which is quantized in the same
// epilogue if its scale is known before (amax: of the last step).
class LinearThenSquare final : public Fusion {
  public:
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const linear = node_at<Linear>(nodes, 0);
        const auto* const activate = node_at<Activate>(nodes, 1);
        const bool match = linear && !linear->has_addend() && activate && activate->squares() &&
                           activate->value_of(activate->x) == linear->y() &&
                           graph[activate->value_of(activate->y)].root == graph[linear->y()].root;
        if (!match) return 0;
        const auto* const next = node_at<Linear>(nodes, 2);
        return reads_square(activate, next) && next->in_fp8() ? 3 : 2;
    }
    void forward(std::span<const Call> calls) const override {
        const auto& linear = node_of<Linear>(calls[0]);
        const Linear* const next = calls.size() > 2 ? &node_of<Linear>(calls[2]) : nullptr;
        if (next && next->knows_scale(calls[2])) {
            linear.forward_then(next->quantizing(calls[2]), calls[0]);
            return next->forward_of_quantized(calls[2]);
        }
        linear.forward_then({.relu_squared = true}, calls[0]);
        if (next) next->forward(calls[2]);
    }
};

// Backward of relu² and the linear that reads it.
class SquareThenLinear final : public Fusion {
  public:
    size_t matches(const NodeGraph& /*graph*/, std::span<const Node* const> nodes) const override {
        return reads_square(node_at<Activate>(nodes, 0), node_at<Linear>(nodes, 1)) ? 2 : 0;
    }
    bool has_forward() const override { return false; }
    bool has_backward() const override { return true; }
    void backward(std::span<const Call> calls) const override {
        const auto& activate = node_of<Activate>(calls[0]);
        const auto& linear = node_of<Linear>(calls[1]);
        linear.backward_parameters(calls[1]);
        linear.backward_input_then({.squares = calls[0](activate.y)}, calls[0].gradient(activate.x).tensor,
                                   calls[1]);
    }
};

// Backward of QK-norm and rotary, in place, and of the attention that reads their results.
class RotaryThenAttention final : public Fusion {
  public:
    explicit RotaryThenAttention(FusesRotary fuses_rotary) : fuses_rotary_(std::move(fuses_rotary)) {}
    size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const override {
        const auto* const rotary = node_at<QkNormRotary>(nodes, 0);
        const auto* const attention = node_at<Attention>(nodes, 1);
        const bool match = rotary && attention && rotary->is_in_place() && attention->q() == rotary->q() &&
                           attention->k() == rotary->k() && fuses_rotary_(attention->widths(graph));
        return match ? 2 : 0;
    }
    bool has_forward() const override { return false; }
    bool has_backward() const override { return true; }
    void backward(std::span<const Call> calls) const override {
        node_of<Attention>(calls[1]).backward_of(calls[1],
                                                 node_of<QkNormRotary>(calls[0]).of_inputs(calls[0]));
    }

  private:
    const FusesRotary fuses_rotary_;
};

// A collective and the linear that reads its result. In backward the collective of dx overlaps with the parameters'
// gradients.
class RedistributeThenLinear final : public Fusion {
  public:
    size_t matches(const NodeGraph& /*graph*/, std::span<const Node* const> nodes) const override {
        const auto* const rows = node_at<Redistribute>(nodes, 0);
        const auto* const linear = node_at<Linear>(nodes, 1);
        return rows && linear && rows->sends_gradient() && linear->x() == rows->y() ? 2 : 0;
    }
    bool has_forward() const override { return false; }
    bool has_backward() const override { return true; }
    void backward(std::span<const Call> calls) const override {
        const auto& rows = node_of<Redistribute>(calls[0]);
        const auto& linear = node_of<Linear>(calls[1]);
        linear.backward_input(calls[1]);
        rows.begin_backward(calls[0]);
        linear.backward_parameters(calls[1]);
        rows.end_backward(calls[0]);
    }
};

}  // namespace

Fusions model_fusions(FusesRotary fuses_rotary) {
    Fusions fusions;
    fusions.push_back(std::make_unique<AddThenNorm>());
    fusions.push_back(std::make_unique<AddMixThenNorm>());
    fusions.push_back(std::make_unique<SumThenNorm>());
    fusions.push_back(std::make_unique<JoinThenNorm>());
    fusions.push_back(std::make_unique<MixAndRotary>());
    fusions.push_back(std::make_unique<LinearThenSquare>());
    fusions.push_back(std::make_unique<SquareThenLinear>());
    fusions.push_back(std::make_unique<RedistributeThenLinear>());
    if (fuses_rotary) fusions.push_back(std::make_unique<RotaryThenAttention>(std::move(fuses_rotary)));
    return fusions;
}

}  // namespace speedrun
