// Portable matmul, implemented by matmul.cu and used by operations built of matmuls.
#pragma once

#include "kernels/device/device.h"

namespace speedrun {

// c = alpha·op(a)·op(b) (+ bias) + beta·addend, for one matrix or, if c has three dimensions, for each of a
// batch (then all contiguous). c: real or f32; a, b: real; addend: type of c, may be c; bias: f32 [N]. Sums
// in f32.
struct Product {
    Tensor c, a, b;
    bool transpose_a = false, transpose_b = false;
    float alpha = 1.0f, beta = 0.0f;
    Tensor addend = {}, bias = {};
    bool symmetric = false;  // c is symmetric: only tiles on and below the diagonal are computed, the others
                             // mirrored
};

// Workspace bytes of tile_product(): 0 unless the sum is split.
int64_t product_workspace(const Product& product);
// The caller must check shapes and types.
void tile_product(const Product& product, void* workspace, Stream& stream);

}  // namespace speedrun
