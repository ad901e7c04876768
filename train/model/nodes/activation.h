// y = activation(x), element by element.
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
          y_(writes({.value = ports.y})),
          x_(reads({.value = ports.x, .gradient = Gives::written, .in_backward = true, .in_place = true})),
          activation_(activation) {}
    const char* kind() const override { return "activation"; }
    std::string describe(const NodeGraph& /*graph*/) const override { return word_of(activation_); }
    void forward(const Call& call) const override {
        call.ops.activation_forward({.y = call(y_), .x = call(x_), .activation = activation_}, call.stream);
    }
    void backward(const Call& call) const override {
        call.ops.activation_backward({.dx = call.gradient(x_).tensor,
                                      .dy = call.gradient(y_),
                                      .x = call(x_),
                                      .activation = activation_},
                                     call.stream);
    }

  private:
    const Out y_;
    const In x_;
    const Activation activation_;
};

}  // namespace speedrun
