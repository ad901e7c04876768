// Activations, elementwise sums and products.
#pragma once

#include "kernels/ops/op.h"

namespace speedrun {

enum class Activation : uint8_t { relu_squared, gelu_tanh, gelu_erf };

// Second operand of a mix with x: c₀·x + c₁·z.
struct MixWith {
    Tensor z;             // real, x's shape
    Tensor coefficients;  // f32 [2] in device memory
};

}  // namespace speedrun

namespace speedrun::op {

// y = activation(x), elementwise.
//   relu_squared   relu(x)²                                 (So et al. 2021)
//   gelu_tanh      ½x(1 + tanh(√(2/π)(x + 0.044715x³)))     (Hendrycks & Gimpel 2016)
// gelu_erf       ½x(1 + erf(x/√2))                        (ibid., the exact form)
struct ActivationForward {
    ByName by_name = ByName();
    Tensor y;  // real [T,C], may alias x
    Tensor x;  // real [T,C]
    Activation activation;

    static void operands(auto& op, auto visit) {
        visit.writes(op.y, "activation y");
        visit.reads(op.x, "activation x");
    }
    void check() const { check_elementwise(*this); }
    void traffic(Traffic& t) const { count_elementwise(*this, t); }
};

// dx = dy · activation'(x). Of relu_squared: dx = dy · 2√y, y = relu(x)².
struct ActivationBackward {
    ByName by_name = ByName();
    Tensor dx;     // real [T,C], may alias dy
    Tensor dy;     // real [T,C]
    Tensor saved;  // real [T,C]: x, the input of the forward; for relu_squared y, its output
    Activation activation;

    static void operands(auto& op, auto visit) {
        visit.writes(op.dx, "activation dx");
        visit.reads(op.saved, "activation saved");
        visit.reads(op.dy, "activation dy");
    }
    void check() const { check_elementwise(*this); }
    void traffic(Traffic& t) const { count_elementwise(*this, t); }
};

// y = x + z.
struct Add {
    ByName by_name = ByName();
    Tensor y;  // real [T,C], may alias x or z
    Tensor x;  // real [T,C]
    Tensor z;  // real [T,C]

    static void operands(auto& op, auto visit) {
        visit.writes(op.y, "add y");
        visit.reads(op.x, "add x");
        visit.reads(op.z, "add z");
    }
    void check() const { check_elementwise(*this); }
    void traffic(Traffic& t) const { count_elementwise(*this, t); }
};

// y = silu(gate) · x, where silu(g) = g·sigmoid(g). The hidden layer of SwiGLU (Shazeer 2020).
struct SiluProductForward {
    ByName by_name = ByName();
    Tensor y;     // real [T,C]
    Tensor gate;  // real [T,C]
    Tensor x;     // real [T,C]

    static void operands(auto& op, auto visit) {
        visit.writes(op.y, "silu_product y");
        visit.reads(op.gate, "silu_product gate");
        visit.reads(op.x, "silu_product x");
    }
    void check() const { check_elementwise(*this); }
    void traffic(Traffic& t) const { count_elementwise(*this, t); }
};

// dgate = dy · x · silu'(gate), dx = dy · silu(gate), where silu'(g) = s·(1 + g·(1 − s)) and s = sigmoid(g).
struct SiluProductBackward {
    ByName by_name = ByName();
    Tensor dgate;  // real [T,C], may alias dy
    Tensor dx;     // real [T,C]
    Tensor dy;     // real [T,C]
    Tensor gate;   // real [T,C], operands of the forward
    Tensor x;      // real [T,C]

    static void operands(auto& op, auto visit) {
        visit.writes(op.dgate, "silu_product dgate");
        visit.writes(op.dx, "silu_product dx");
        visit.reads(op.dy, "silu_product dy");
        visit.reads(op.gate, "silu_product gate");
        visit.reads(op.x, "silu_product x");
    }
    void check() const { check_elementwise(*this); }
    void traffic(Traffic& t) const { count_elementwise(*this, t); }
};

#define SPEEDRUN_POINTWISE_OPS(X)               \
    X(activation_forward, ActivationForward)    \
    X(activation_backward, ActivationBackward)  \
    X(add, Add)                                 \
    X(silu_product_forward, SiluProductForward) \
    X(silu_product_backward, SiluProductBackward)

}  // namespace speedrun::op
