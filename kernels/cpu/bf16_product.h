// Matrix products in bf16 by our own loops, where the processor has avx512_bf16. Every element of the result
// is summed in an order that depends on the sizes alone: the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "kernels/device/dtype.h"

namespace speedrun::cpu {

// c = op(a) op(b) + beta·c (+ bias), as Ops::matmul; c is bf16 or f32, strides in elements.
struct Bf16Product {
    int64_t m, n, k;
    const Bf16* a;
    int64_t a_stride;
    bool transpose_a;
    const Bf16* b;
    int64_t b_stride;
    bool transpose_b;
    void* c;
    int64_t c_stride;
    bool c_is_f32;
    float beta = 0.0f;
    const float* bias = nullptr;  // [n]
    const Bf16* base = nullptr;   // [m][n], of c's stride: scaled by beta and added in place of a bf16 c
    bool symmetric = false;  // op(b) is op(a)ᵀ, or the result known to be symmetric: half of it is computed
};

// Whether this build and this processor can: the others have a library (matmul_cache.h).
bool has_bf16_product();
// Bytes of scratch memory that run_bf16_product() needs.
int64_t bf16_product_workspace(const Bf16Product& product);
// Runs on the calling thread's team. workspace: 64-byte aligned.
void run_bf16_product(const Bf16Product& product, void* workspace);

}  // namespace speedrun::cpu
