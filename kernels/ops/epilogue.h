// Epilogue of a matmul: an elementwise function of its result, applied before the result is stored.
#pragma once

#include "kernels/ops/op.h"

namespace speedrun::op {

// c = f(r). r is the matmul with its bias, rounded to c's type: c has the bits of the matmul followed by f. At most
// one of relu_squared and squares.
struct Epilogue {
    bool relu_squared = false;  // f(r) = relu(r)²
    // real [M,N], not c: relu(x)² of a forward. f(r) = r · 2√squares, the gradient of x for the gradient r of squares.
    Tensor squares = {};
    // With relu_squared: the FP8 form of c and its amax, as op::Quantize of c.
    Tensor quantized = {};  // e4m3 [M,N]
    Tensor scale = {};      // f32 [1], read, or written if `constant` is set
    float constant = 0;     // above 0: the scale
    Tensor amax = {};       // f32 [1], ≥ 0; becomes max(amax, max c), or NaN if c has one

    bool present() const { return relu_squared || squares.present(); }
    // Throws, with the actual values, for an epilogue that does not fit c. name: of the matmul.
    void check(const Tensor& c, const char* name) const;
    void traffic(Traffic& t) const {
        t.reads(squares);
        t.writes(quantized);
        if (constant > 0)
            t.writes(scale);
        else
            t.reads(scale);
        t.updates(amax);
    }
    // addend: of the matmul, which excludes an epilogue.
    EpilogueKind kind(const Tensor& addend = {}) const {
        if (quantized.present()) return EpilogueKind::relu_squared_fp8;
        if (relu_squared) return EpilogueKind::relu_squared;
        if (squares.present()) return EpilogueKind::relu_squared_backward;
        return addend.present() ? EpilogueKind::addend : EpilogueKind::none;
    }
    // Throws, with the actual values, for an addend that does not fit the matmul c (+)= epilogue(…). name: of the matmul.
    void check_addend(const Tensor& addend, const Tensor& c, bool accumulate, const char* name) const;
};

}  // namespace speedrun::op
