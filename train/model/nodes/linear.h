// y = x Wᵀ (+ b).
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

class Linear final : public Node {
  public:
    struct Ports {
        ValueId y;                        // (tokens, outputs)
        ValueId x;                        // (tokens, inputs)
        ParameterId weight;               // (outputs, inputs)
        ParameterId bias = kNoParameter;  // (outputs)
    };
    // adds_bias: else a rank that sums this product with its own adds it, but all have its gradient.
    explicit Linear(const Ports& ports, bool adds_bias = true);
    const char* kind() const override { return "linear"; }
    std::string describe(const NodeGraph& graph) const override;
    bool by_rows() const override { return true; }
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    void give_inputs(const Call& call) const;
    void give_parameters(const Call& call) const;

    const Out y_;
    const In x_;
    const Par weight_, bias_;
    const bool adds_bias_;
};

}  // namespace speedrun
