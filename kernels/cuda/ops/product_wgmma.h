// Matmuls with epilogues for compute capability 9.0, implemented by product_wgmma.cu.
#pragma once

#include "kernels/device/device.h"

namespace speedrun {

// c = f(r), r = scale_a·scale_b·op(a) op(b) (+ bias) (+ addend), rounded to bf16. The bits are those of the same matmul followed by f.
struct WgmmaProduct {
    Tensor c;     // bf16 [M,N], or a batch [n,M,N]: then all operands have three dimensions
    Tensor a, b;  // bf16 [M,K] and [K,N], or transposed; or e4m3 [M,K] and [N,K]
    bool transpose_a = false, transpose_b = false;
    Tensor scale_a = {}, scale_b = {};  // f32 [1], with e4m3
    Tensor bias = {};                   // f32 [N], without f or addend; nt only
    Tensor addend = {};                 // bf16 [M,N], without f; may be c
    // At most one of the following: f(r) = relu(r)², or f(r) = r · 2√squares.
    bool relu_squared = false;
    Tensor squares = {};  // bf16 [M,N]
    // With relu_squared: the FP8 form of c and its amax, as in op::Quantize.
    Tensor quantized = {};  // e4m3 [M,N]
    Tensor scale = {};      // f32 [1], read, or written if `constant` is set
    float constant = 0;     // above 0: the scale
    Tensor amax = {};       // f32 [1]
};

// Enqueues the matmul and returns true, or returns false if it has no kernel for these layouts, types, sizes or alignments. The GPU
// must have compute capability 9.0.
bool wgmma_product(const WgmmaProduct& x, Stream& stream);

}  // namespace speedrun
