// The 8-bit form of a node's operand, made where it is needed.
#pragma once

#include "train/config/fp8.h"
#include "train/model/graph/call.h"

namespace speedrun {

// relu(x)², to be written.
struct Squares {
    Tensor relu_squared, x;
};

// Scratch of a node; absent ports: not wanted.
struct Quantized {
    Node::Tmp numbers, transposed;
    Node::Tmp scale;  // f32 (1, 1)
    int kept = -1;    // the table's scale that it goes by; −1: none

    // Rounds x, by a constant scale.
    void fill(const Call& call, const Tensor& x, float scale_of_x) const;
    // … by what a config says.
    void fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how) const;
    // Is the scale known before x is?
    bool known(const Call& call, const Fp8ScaleConfig& how) const {
        return how.by == Fp8ScaleBy::constant || by_last_step(call);
    }
    // Where it is: writes relu_squared, of x, and rounds that.
    void fill_squares(const Call& call, const Squares& squares, const Fp8ScaleConfig& how) const;
    // What x was divided by, f32 [1].
    Tensor scale_in(const Call& call) const;

  private:
    struct Rounded {
        Tensor x;
        float constant = 0;        // above 0: its scale
        Tensor relu_squared = {};  // absent: x itself is rounded
    };
    void round(const Call& call, const Rounded& r) const;
    bool by_last_step(const Call& call) const {
        return kept >= 0 && call.scales && !call.scales->exact(kept);
    }
};

}  // namespace speedrun
