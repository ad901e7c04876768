// Common code of the attention tests: cases, inputs and tolerances.
#pragma once

#include <algorithm>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::attention {

enum class Documents { whole, mixed, single };  // per sequence: one; of 1, 2, 3 … tokens; one per token

struct Case {
    int64_t sequence_length, num_sequences, num_heads, head_dim, window;
    float scale;
    Documents documents;
    bool packed;         // q|k|v in one tensor, their gradients in another; o among other columns
    int64_t values = 0;  // Dv; 0: head_dim

    int64_t value_dim() const { return values > 0 ? values : head_dim; }
};

inline Indices first_keys(const Case& c) {
    Indices first(static_cast<size_t>(c.num_sequences * c.sequence_length));
    for (int64_t s = 0; s < c.num_sequences; ++s) {
        int64_t start = 0, length = 1;
        for (int64_t i = 0; i < c.sequence_length; ++i) {
            if (i == start + length && c.documents != Documents::whole) {
                start = i;
                if (c.documents == Documents::mixed) ++length;
            }
            first[static_cast<size_t>(s * c.sequence_length + i)] =
                static_cast<int32_t>(s * c.sequence_length + start);
        }
    }
    return first;
}

inline AttentionOptions options_of(const Case& c) {
    return {c.sequence_length, c.num_heads, c.head_dim, c.window, c.scale};
}

inline std::string describe(const Case& c) {
    return fmt::format("S={} sequences={} H={} D={}/{} window={} documents={} packed={}", c.sequence_length,
                       c.num_sequences, c.num_heads, c.head_dim, c.value_dim(), c.window,
                       static_cast<int>(c.documents), c.packed);
}

struct Inputs {
    int64_t rows, width, value_width;  // widths: columns of q and k, of v and o
    Indices first_key;
    Matrix q, k, v;

    Inputs(const Case& c, DType dtype)
        : rows(c.num_sequences * c.sequence_length),
          width(c.num_heads * c.head_dim),
          value_width(c.num_heads * c.value_dim()),
          first_key(first_keys(c)),
          q(random_matrix(rows, width, 1, dtype)),
          k(random_matrix(rows, width, 2, dtype)),
          v(random_matrix(rows, value_width, 3, dtype)) {}
};

// Uploads matrices with the same number of rows; packed: side by side in one tensor.
inline std::vector<Tensor> upload(Harness& h, std::initializer_list<const Matrix*> matrices, DType dtype,
                                  bool packed) {
    std::vector<Tensor> tensors;
    if (!packed) {
        for (const Matrix* matrix : matrices) tensors.push_back(h.input(*matrix, dtype));
        return tensors;
    }
    int64_t cols = 0;
    for (const Matrix* matrix : matrices) cols += matrix->cols;
    Matrix all((*matrices.begin())->rows, cols);
    int64_t begin = 0;
    for (const Matrix* matrix : matrices) {
        for (int64_t t = 0; t < all.rows; ++t) {
            for (int64_t i = 0; i < matrix->cols; ++i) all(t, begin + i) = (*matrix)(t, i);
        }
        begin += matrix->cols;
    }
    const Tensor tensor = h.input(all, dtype);
    begin = 0;
    for (const Matrix* matrix : matrices) {
        tensors.push_back(tensor.column_slice(begin, matrix->cols));
        begin += matrix->cols;
    }
    return tensors;
}

struct Operands {
    Tensor q, k, v;
};
inline Operands upload(Harness& h, const Inputs& in, DType dtype, bool packed) {
    const std::vector<Tensor> tensors = upload(h, {&in.q, &in.k, &in.v}, dtype, packed);
    return {tensors[0], tensors[1], tensors[2]};
}

// Outputs are among other columns if packed.
inline Margin margin_of(bool packed) {
    return {0, packed ? 8 : 0};
}

// Errors of an exponential are the errors of its argument, a sum of D products; the output sums S
// exponentials. Gradients sum Dv products, too.
inline Tolerance tolerance_of(const Case& c, DType dtype) {
    Tolerance tolerance =
        reduction_of_rounded(dtype, c.sequence_length + std::max(c.head_dim, c.value_dim()));
    const double largest_score = std::max(1.0, 3.0 * static_cast<double>(c.scale) * std::sqrt(c.head_dim));
    tolerance.scaled += 16 * kF32Roundoff * largest_score;
    return tolerance;
}

// Tolerance of dq and dk. A token that sees only itself has gradient zero in q and k, except for the residue
// of dP − Σ P·dP. It cancels only up to the rounding of o: √Dv products of size 1, times scale and a vector of
// size 1. The maximum of 10⁴ products of two normal values is about 12; rounding errs by at most half an ulp.
inline Tolerance tolerance_of_gradient(const Case& c, DType dtype) {
    Tolerance tolerance = tolerance_of(c, dtype);
    tolerance.absolute =
        8 * c.scale * std::sqrt(c.value_dim()) * (dtype == DType::bf16 ? kBf16Ulp : 8 * kF32Roundoff);
    return tolerance;
}

}  // namespace speedrun::testing::attention
