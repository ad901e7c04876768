// Activations and elementwise sums.
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
    Tensor y;  // real [T,C]
    Tensor x;  // real [T,C]
    Activation activation;

    void check() const { expect(y, x.dtype, {x.rows(), x.cols()}, "activation y"); }
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads(x);
    }
};

// dx = dy · activation'(x).
struct ActivationBackward {
    ByName by_name = ByName();
    Tensor dx;  // real [T,C], may alias dy
    Tensor dy;  // real [T,C]
    Tensor x;   // real [T,C], the input of the forward
    Activation activation;

    void check() const {
        expect(dx, x.dtype, {x.rows(), x.cols()}, "activation dx");
        expect(dy, x.dtype, {x.rows(), x.cols()}, "activation dy");
    }
    void traffic(Traffic& t) const {
        t.writes(dx);
        t.reads(dy, x);
    }
};

// y = x + z.
struct Add {
    ByName by_name = ByName();
    Tensor y;  // real [T,C], may alias x or z
    Tensor x;  // real [T,C]
    Tensor z;  // real [T,C]

    void check() const {
        expect(y, x.dtype, {x.rows(), x.cols()}, "add y");
        expect(z, x.dtype, {x.rows(), x.cols()}, "add z");
    }
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads(x, z);
    }
};

#define SPEEDRUN_POINTWISE_OPS(X)              \
    X(activation_forward, ActivationForward)   \
    X(activation_backward, ActivationBackward) \
    X(add, Add)

}  // namespace speedrun::op
