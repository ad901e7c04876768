#include "tests/reference/reference.h"

namespace speedrun::reference {

Matrix embedding_forward(const Indices& index, const Matrix& table, const Indices& position,
                         const Matrix& position_table) {
    Matrix out(static_cast<int64_t>(index.size()), table.cols);
    for (int64_t t = 0; t < out.rows; ++t) {
        for (int64_t c = 0; c < out.cols; ++c) {
            out(t, c) = table(index[t], c);
            if (!position_table.empty()) out(t, c) += position_table(position[t], c);
        }
    }
    return out;
}

Matrix embedding_backward(int64_t vocab_size, const Indices& index, const Matrix& dout) {
    Matrix dtable(vocab_size, dout.cols);
    for (int64_t t = 0; t < dout.rows; ++t) {
        for (int64_t c = 0; c < dout.cols; ++c) dtable(index[t], c) += dout(t, c);
    }
    return dtable;
}

Matrix with_signs(const Matrix& x, const Matrix& signs, const Indices& row) {
    Matrix y(x.rows, x.cols);
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t c = 0; c < x.cols; ++c) y(t, c) = x(t, c) * signs(row[t], c);
    }
    return y;
}

Matrix transposed(const Matrix& x) {
    Matrix y(x.cols, x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) y(c, r) = x(r, c);
    }
    return y;
}

Matrix matmul(const Matrix& a, const Matrix& b) {
    Matrix c(a.rows, b.cols);
    for (int64_t m = 0; m < a.rows; ++m) {
        for (int64_t k = 0; k < a.cols; ++k) {
            for (int64_t n = 0; n < b.cols; ++n) c(m, n) += a(m, k) * b(k, n);
        }
    }
    return c;
}

Matrix column_sum(const Matrix& x) {
    Matrix out(1, x.cols);
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t c = 0; c < x.cols; ++c) out[c] += x(t, c);
    }
    return out;
}

}  // namespace speedrun::reference
