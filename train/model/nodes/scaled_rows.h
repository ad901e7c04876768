// Matrix of a linear layer whose last rows have a learned factor c: the product reads m, with m[i] = c·M[i] in the last
// rows and m[i] = M[i] in the others. The factor costs a pass over the matrix instead of one over the outputs.
#pragma once

#include <functional>

#include "train/model/graph/call.h"

namespace speedrun {

// Scratch of a node.
struct ScaledRows {
    int64_t count = 0;    // rows with the factor
    Node::Tmp scaled;     // m, (rows, columns), M's dtype
    Node::Tmp gradient;   // f32 (count, columns), backward: gradient of the last rows of m
    Node::Tmp unrounded;  // f32 (count, columns), backward: the last rows of M; absent: M is f32

    struct Operands {
        Tensor rows;    // M
        Tensor factor;  // c, f32 [1]
    };
    // Enqueues the computation of m and returns it.
    Tensor scale(const Call& call, const Operands& operands) const;

    struct Gradients {
        ParameterGradient rows;    // dM, f32
        ParameterGradient factor;  // dc
    };
    struct Product {
        Tensor gradient;  // f32, rows from `first` on, of the gradient of m
        int64_t first;
        bool accumulate;
    };
    // Enqueues the gradients, with g the gradient of m: dM (+)= g in the first rows, dM (+)= c·g and dc (+)= Σ g·M in
    // the last. `multiply` enqueues a part of g.
    void add_gradients(const Call& call, const Operands& operands, const Gradients& gradients,
                       const std::function<void(const Product&)>& multiply) const;
};

}  // namespace speedrun
