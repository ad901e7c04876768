// The matrix product, and the gradient of its bias.
#pragma once

#include "kernels/ops/epilogue.h"

namespace speedrun::op {

// c (+)= epilogue(op(a) op(b) (+ bias) (+ addend)). Sums in f32; rows of each may be strided.
struct Matmul {
    ByName by_name = ByName();
    Tensor c;          // real or f32 [M,N]
    Tensor a;          // real [M,K], or [K,M] if transposed
    Tensor b;          // real [K,N], or [N,K]
    Tensor bias = {};  // f32 [N], not with accumulate; a backend may round it to c's type first
    bool transpose_a = false;
    bool transpose_b = false;
    bool accumulate = false;
    Tensor addend = {};      // type, shape and row stride of c, not c; not with accumulate or an epilogue
    Epilogue epilogue = {};  // not with accumulate; c is of a's type

    void check() const;
    void traffic(Traffic& t) const {
        t.adds_to(accumulate, c);
        t.reads(a, b, bias, addend);
        epilogue.traffic(t);
    }
    ProductShape product() const {
        constexpr std::string_view kLayouts[2][2] = {{"nn", "nt"}, {"tn", "tt"}};
        return {{c.shape[0], c.shape[1], a.shape[transpose_a ? 0 : 1]},
                kLayouts[transpose_a][transpose_b],
                bias.present() ? epilogue.kind() : epilogue.kind(addend)};
    }
};

// out[c] (+)= Σ_t x[t,c].
struct ColumnSum {
    ByName by_name = ByName();
    Tensor out;  // f32 [C]
    Tensor x;    // real [T,C]
    bool accumulate;

    void check() const { expect(out, DType::f32, {x.cols()}, "column_sum out"); }
    void traffic(Traffic& t) const {
        t.adds_to(accumulate, out);
        t.reads(x);
    }
};

#define SPEEDRUN_MATMUL_OPS(X) \
    X(matmul, Matmul)          \
    X(column_sum, ColumnSum)

}  // namespace speedrun::op
