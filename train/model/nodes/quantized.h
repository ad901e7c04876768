// The 8-bit form of a node's operand, made where it is needed.
#pragma once

#include "train/config/fp8.h"
#include "train/model/graph/call.h"

namespace speedrun {

// Scratch of a node; absent ports: not wanted.
struct Quantized {
    Node::Tmp numbers, transposed;
    Node::Tmp scale;  // f32 (1, 1)

    // Rounds x, by a constant scale.
    void fill(const Call& call, const Tensor& x, float scale_of_x) const;
    // … by what a config says.
    void fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how) const;
    Tensor scale_in(const Call& call) const { return call(scale).reshaped({1}); }

  private:
    void round(const Call& call, const Tensor& x) const;
};

}  // namespace speedrun
