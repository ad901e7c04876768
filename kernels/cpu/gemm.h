// Matmuls by our own loops. The summation order of every element depends on the sizes alone: the same bits
// for any number of threads, and in f32 at every instruction level.
#pragma once

#include <cstdint>

#include "kernels/device/dtype.h"

namespace speedrun::cpu {

enum class Side { left, right };

// c = scale·op(a) op(b) + beta·base (+ bias), as Ops::matmul; strides in elements.
struct Gemm {
    int64_t m, n, k;
    DType input_dtype;  // type of a and b
    const void* a;
    int64_t a_stride;
    bool transpose_a;
    const void* b;
    int64_t b_stride;
    bool transpose_b;
    void* c;
    int64_t c_stride;
    DType result;  // type of c: `input_dtype` or f32
    float beta = 0.0f;
    const float* bias = nullptr;  // [n]
    const void* base = nullptr;   // [m][n], same type and stride as c; null: c itself
    const float *scale_a = nullptr,
                *scale_b = nullptr;  // their product is the scale, read at run time; null: 1
    bool amx = false;                // bf16 with AMX: level amx_bf16
    bool symmetric = false;  // op(b) is op(a)ᵀ, or the result is known to be symmetric: half is computed

    int64_t flops() const { return 2 * m * n * k; }  // counts all of a symmetric result
};

// Bytes of scratch memory that run_product() needs.
int64_t product_workspace(const Gemm& product);
// Runs on the calling thread's team. workspace: 64-byte aligned.
void run_product(const Gemm& product, void* workspace);

}  // namespace speedrun::cpu
