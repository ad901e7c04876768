// y = activation(x), elementwise.
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
          y(writes({.value = ports.y})),
          x(reads(
              {.value = ports.x, .gradient = GradientRule::written, .in_backward = true, .in_place = true})),
          activation_(activation) {}
    const char* kind() const override { return "activation"; }
    std::string describe(const NodeGraph& /*graph*/) const override { return word_of(activation_); }
    void forward(const Call& call) const override {
        call.ops.activation_forward({.y = call(y), .x = call(x), .activation = activation_}, call.stream);
    }
    void backward(const Call& call) const override {
        call.ops.activation_backward(
            {.dx = call.gradient(x).tensor, .dy = call.gradient(y), .x = call(x), .activation = activation_},
            call.stream);
    }

    const Out y;
    const In x;
    Activation activation() const { return activation_; }

  private:
    const Activation activation_;
};

}  // namespace speedrun
