// FP8 matmuls, and the quantization of their operands.
#pragma once

#include "kernels/ops/epilogue.h"

namespace speedrun::op {

// out = fp8(x · (1/scale)), transposed = outᵀ: rounded to nearest even, saturated to the largest value. A scale of 0
// yields zeros.
struct Quantize {
    ByName by_name = ByName();
    Tensor out = {};         // fp8 [T,C]
    Tensor transposed = {};  // fp8 [C,T]; one of out and transposed, or both, of one dtype
    Tensor x;                // real [T,C]; rows may be strided
    Tensor scale;            // f32 [1], read, or written if `constant` is set
    float constant = 0;      // above 0: the scale
    Tensor amax = {};        // f32 [1], ≥ 0; becomes max(amax, max|x|), or NaN if x has one

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(out, transposed);
        t.reads(x);
        if (constant > 0)
            t.writes(scale);
        else
            t.reads(scale);
        t.updates(amax);
    }
};

// scales = factors · amax, and amax = 0: the amax recorded in a step (Quantize) sets the next step's scales (NVIDIA
// Transformer Engine documentation, "delayed scaling").
struct RenewScales {
    ByName by_name = ByName();
    Tensor scales;   // f32 [n]
    Tensor amax;     // f32 [n]
    Tensor factors;  // f32 [n]

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(scales);
        t.updates(amax);
        t.reads(factors);
    }
};

// c (+)= epilogue(scale_a·scale_b·a bᵀ (+ addend)), summed in f32: the only FP8 layout that tensor cores support (cuBLAS documentation,
// cublasLtMatmul, "FP8"). Rows may be strided. Strides of a and b, and K, are multiples of 16.
struct ScaledMatmul {
    ByName by_name = ByName();
    Tensor c;                 // real [M,N]
    Tensor a;                 // fp8 [M,K]
    Tensor b;                 // fp8 [N,K]; at most one of a and b is e5m2
    Tensor scale_a, scale_b;  // f32 [1]
    bool accumulate = false;
    Tensor addend = {};      // type, shape and row stride of c, not c; not with accumulate or an epilogue
    Epilogue epilogue = {};  // not with accumulate

    void check() const;
    void traffic(Traffic& t) const {
        t.adds_to(accumulate, c);
        t.reads(a, b, scale_a, scale_b, addend);
        epilogue.traffic(t);
    }
    ProductShape product() const {
        return {{c.shape[0], c.shape[1], a.shape[1]}, "nt", epilogue.kind(addend)};
    }
};

#define SPEEDRUN_FP8_OPS(X)      \
    X(quantize, Quantize)        \
    X(renew_scales, RenewScales) \
    X(scaled_matmul, ScaledMatmul)

}  // namespace speedrun::op
