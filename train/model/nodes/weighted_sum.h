// Weighted sums of values: mixes, skip connections, gates, the previous token's row (op::WeightedSumForward).
#pragma once

#include <vector>

#include "train/model/graph/call.h"

namespace speedrun {

class WeightedSum final : public Node {
  public:
    // factor · weight · value; the weight is an element of a parameter, a value, or 1.
    struct Term {
        ValueId value;
        ParameterId parameter = kNoParameter;  // f32 vector; a node uses all of its elements
        int64_t element = 0;
        ValueId gate = kNoValue;  // f32 (1), (tokens, 1) or (tokens, heads)
        float factor = 1;
        bool shifted = false;  // value of the previous row
        // The value or y is a view, unless both are of the same columns: the gradient is written, not passed.
        bool is_view = false;
    };
    struct Ports {
        ValueId y;                // (tokens, columns)
        std::vector<Term> terms;  // each of y's shape
    };
    WeightedSum(const Ports& ports, int64_t sequence_length);
    const char* kind() const override { return "weighted sum"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;
    // Terms with a coefficient per token.
    std::vector<SharedTerm> shared_terms(const NodeGraph& graph) const override;
    void backward_of_shared(std::span<const Call> calls) const override;

    // True if y = c₀·x + c₁·z with the two elements of one parameter, the form of most fused operations.
    bool is_mix() const;
    // True if backward works row by row: no term's gradient is passed or shifted, and no gate is per head.
    bool is_by_rows(const NodeGraph& graph) const;

    const Out y;
    WeightedTerms terms_of(const Call& call) const;
    int64_t sequence_length() const { return sequence_length_; }
    // Calls enqueue(gradients, terms) for the terms that have gradients; it enqueues the contributions.
    template <class Enqueue>
    void contributions(const Call& call, const Enqueue& enqueue) const;
    // The terms of a mix: x, z and c.
    In first() const { return terms_[0].value; }
    In second() const { return terms_[1].value; }
    Par coefficients() const { return terms_[0].parameter; }

  private:
    struct Port {
        In value, gate;
        Par parameter;
        int64_t element;
        float factor;
        bool shifted, passed;  // passed: its gradient is that of y
    };
    Par use_once(ParameterId parameter);
    // Returns true if any term needs a gradient.
    bool take_gradients(const Call& call, std::span<const ParameterGradient> parameters,
                        TermGradients& gradients, WeightedTerms& requested) const;

    std::vector<Port> terms_;
    const int64_t sequence_length_;
};

template <class Enqueue>
void WeightedSum::contributions(const Call& call, const Enqueue& enqueue) const {
    std::vector<Call::Target> targets;
    for (size_t i = 0; i < uses().size(); ++i) targets.push_back(call.of(Par{static_cast<int>(i)}));
    contribute_all(targets, [&](std::span<const ParameterGradient> parameters) {
        TermGradients gradients{};
        WeightedTerms requested{};
        if (take_gradients(call, parameters, gradients, requested)) enqueue(gradients, requested);
    });
}

}  // namespace speedrun
