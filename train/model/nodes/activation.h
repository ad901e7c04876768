// y = activation(x), elementwise. Backward reads x, but of relu_squared y: then y may be a view of x.
#pragma once

#include "train/config/choices.h"
#include "train/model/graph/call.h"

namespace speedrun {

class Activate final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, hidden)
    };
    Activate(const Ports& ports, Activation activation)
        : Node(Cost::pointwise),
          y(writes({.value = ports.y, .in_backward = activation == Activation::relu_squared})),
          x(reads({.value = ports.x,
                   .gradient = GradientRule::written,
                   .in_backward = activation != Activation::relu_squared,
                   .in_place = true})),
          activation_(activation) {}
    const char* kind() const override { return "activation"; }
    std::string describe(const NodeGraph& /*graph*/) const override { return word_of(activation_); }
    void forward(const Call& call) const override {
        call.ops.activation_forward({.y = call(y), .x = call(x), .activation = activation_}, call.stream);
    }
    void backward(const Call& call) const override {
        call.ops.activation_backward({.dx = call.gradient(x).tensor,
                                      .dy = call.gradient(y),
                                      .saved = squares() ? call(y) : call(x),
                                      .activation = activation_},
                                     call.stream);
    }

    const Out y;
    const In x;
    bool squares() const { return activation_ == Activation::relu_squared; }

  private:
    const Activation activation_;
};

}  // namespace speedrun
