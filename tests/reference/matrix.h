// A matrix of doubles, rows × cols, row-major: the only type of the reference. A vector is a matrix of one
// row.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace speedrun::reference {

struct Matrix {
    int64_t rows = 0;
    int64_t cols = 0;
    std::vector<double> values;

    Matrix() = default;
    Matrix(int64_t rows, int64_t cols, double value = 0.0)
        : rows(rows), cols(cols), values(static_cast<size_t>(rows * cols), value) {}

    double& operator()(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
    double operator()(int64_t row, int64_t col) const {
        return values[static_cast<size_t>(row * cols + col)];
    }
    double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
    double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
    int64_t size() const { return rows * cols; }
    bool empty() const { return values.empty(); }  // an argument not given
};

inline Matrix plus(Matrix x, const Matrix& z) {
    for (int64_t i = 0; i < x.size(); ++i) x[i] += z[i];
    return x;
}

inline Matrix times(Matrix x, double factor) {
    for (double& value : x.values) value *= factor;
    return x;
}

inline double dot(const Matrix& x, const Matrix& z) {
    double sum = 0.0;
    for (int64_t i = 0; i < x.size(); ++i) sum += x[i] * z[i];
    return sum;
}

inline double norm(const Matrix& x) {
    return std::sqrt(dot(x, x));
}

// Rows begin … begin+count, and the same for columns.
inline Matrix row_block(const Matrix& x, int64_t begin, int64_t count) {
    Matrix y(count, x.cols);
    for (int64_t i = 0; i < y.size(); ++i) y[i] = x[begin * x.cols + i];
    return y;
}

inline Matrix column_block(const Matrix& x, int64_t begin, int64_t count) {
    Matrix y(x.rows, count);
    for (int64_t r = 0; r < y.rows; ++r) {
        for (int64_t c = 0; c < count; ++c) y(r, c) = x(r, begin + c);
    }
    return y;
}

}  // namespace speedrun::reference
