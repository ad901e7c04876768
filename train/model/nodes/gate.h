// Gates: coefficients of weighted sums.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y = sigmoid(x[:, 0:columns] Wᵀ): gates per token (op::NarrowLinearForward).
class Gate final : public Node {
  public:
    struct Ports {
        ValueId y;           // f32 (tokens, gates)
        ValueId x;           // (tokens, width)
        ParameterId weight;  // (gates, columns)
    };
    Gate(const Ports& ports, int64_t columns);
    const char* kind() const override { return "gate"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In x_;
    const Par weight_;
    const int64_t columns_;
};

// y = scale·(x Wᵀ + b): unbounded coefficients per token (op::NarrowLinearForward).
class TokenFactors final : public Node {
  public:
    struct Ports {
        ValueId y;           // f32 (tokens, numbers)
        ValueId x;           // (tokens, hidden)
        ParameterId weight;  // (numbers, hidden)
        ParameterId bias;    // (numbers)
    };
    TokenFactors(const Ports& ports, float scale);
    const char* kind() const override { return "numbers of tokens"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In x_;
    const Par weight_, bias_;
    const float scale_;
};

// Copies the columns of this rank's heads from coefficients that all tensor ranks have.
class OwnFactors final : public Node {
  public:
    struct Ports {
        ValueId y;  // f32 (tokens, own numbers)
        ValueId x;  // f32 (tokens, numbers)
    };
    OwnFactors(const Ports& ports, int64_t first_column);
    const char* kind() const override { return "own numbers"; }
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In x_;
    const int64_t first_column_;
};

// y = sigmoid(s) or s: one learned scalar for all tokens, as a value.
class FactorGate final : public Node {
  public:
    struct Ports {
        ValueId y;           // f32 (1), or (1, 1)
        ValueId one;         // the constant 1, real (1, 1)
        ParameterId number;  // (1)
    };
    explicit FactorGate(const Ports& ports, GateActivation activation = GateActivation::sigmoid);
    const char* kind() const override {
        return activation_ == GateActivation::sigmoid ? "sigmoid of a number" : "number";
    }
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In one_;
    const Par number_;
    const GateActivation activation_;
};

}  // namespace speedrun
