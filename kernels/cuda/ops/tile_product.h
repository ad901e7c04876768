// The portable matrix product, which matmul.cu implements and the operations built of products share.
#pragma once

#include "kernels/device/device.h"

namespace speedrun {

// c = alpha·op(a)·op(b) + beta·addend (+ bias), of one matrix or, where c has three dimensions, of each of a
// batch of them (then all contiguous). c: real or f32; a, b: real; addend: as c, may be c; bias: f32 [N].
// Sums in f32.
struct Product {
    Tensor c, a, b;
    bool transpose_a = false, transpose_b = false;
    float alpha = 1.0f, beta = 0.0f;
    Tensor addend = {}, bias = {};
    bool symmetric = false;  // c is: only tiles on and below the diagonal are computed, the others mirrored
};

// Bytes of workspace that tile_product() needs: none unless the sum is split.
int64_t product_workspace(const Product& product);
// Shapes and types are the caller's to check.
void tile_product(const Product& product, void* workspace, Stream& stream);

}  // namespace speedrun
