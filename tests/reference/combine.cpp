#include <cmath>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

double activated(double z, GateActivation activation) {
    switch (activation) {
        case GateActivation::sigmoid:
            return 1.0 / (1.0 + std::exp(-z));
        case GateActivation::two_sigmoid:
            return 2.0 / (1.0 + std::exp(-z));
        case GateActivation::tanh:
            return std::tanh(z);
        case GateActivation::identity:
            break;
    }
    return z;
}

double derivative(double z, GateActivation activation) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-z)), tanh = std::tanh(z);
    switch (activation) {
        case GateActivation::sigmoid:
            return sigmoid * (1.0 - sigmoid);
        case GateActivation::two_sigmoid:
            return 2.0 * sigmoid * (1.0 - sigmoid);
        case GateActivation::tanh:
            return 1.0 - tanh * tanh;
        case GateActivation::identity:
            break;
    }
    return 1.0;
}

// Σ_k x[t,k]·W[n,k] + b[n], times scale.
double before_activation(const Matrix& x, const Matrix& weight, const Matrix& bias, double scale, int64_t t,
                         int64_t n) {
    double sum = bias.empty() ? 0.0 : bias[n];
    for (int64_t k = 0; k < x.cols; ++k) sum += x(t, k) * weight(n, k);
    return scale * sum;
}

// Index of the coefficient of row t and column i.
int64_t coefficient_index(const Matrix& c, int64_t t, int64_t i, int64_t cols) {
    return c.rows == 1 && c.cols == 1 ? 0 : t * c.cols + i / (cols / c.cols);
}

}  // namespace

std::vector<WeightedTerm> mix_terms(const Matrix& x, const Matrix& z, const Matrix& coefficients) {
    return {{.source = x, .coefficient = Matrix(1, 1, coefficients[0])},
            {.source = z, .coefficient = Matrix(1, 1, coefficients[1])}};
}

Matrix weighted_sum_forward(const std::vector<WeightedTerm>& terms, int64_t sequence_length) {
    Matrix y(terms[0].source.rows, terms[0].source.cols);
    for (const WeightedTerm& term : terms) {
        for (int64_t t = 0; t < y.rows; ++t) {
            if (term.shifted && t % sequence_length == 0) continue;
            for (int64_t i = 0; i < y.cols; ++i) {
                const Matrix& c = term.coefficient;
                const double value = c.empty() ? 1.0 : c[coefficient_index(c, t, i, y.cols)];
                y(t, i) += term.factor * value * term.source(term.shifted ? t - 1 : t, i);
            }
        }
    }
    return y;
}

std::vector<WeightedTermGradient> weighted_sum_backward(const Matrix& dy,
                                                        const std::vector<WeightedTerm>& terms,
                                                        int64_t sequence_length) {
    std::vector<WeightedTermGradient> gradients;
    for (const WeightedTerm& term : terms) {
        const Matrix& c = term.coefficient;
        WeightedTermGradient g{Matrix(dy.rows, dy.cols), Matrix(c.rows, c.cols)};
        for (int64_t t = 0; t < dy.rows; ++t) {
            if (term.shifted && t % sequence_length == 0) continue;
            const int64_t from = term.shifted ? t - 1 : t;
            for (int64_t i = 0; i < dy.cols; ++i) {
                const int64_t at = c.empty() ? 0 : coefficient_index(c, t, i, dy.cols);
                g.dsource(from, i) += term.factor * (c.empty() ? 1.0 : c[at]) * dy(t, i);
                if (!c.empty()) g.dcoefficient[at] += term.factor * dy(t, i) * term.source(from, i);
            }
        }
        gradients.push_back(g);
    }
    return gradients;
}

Matrix narrow_linear_forward(const Matrix& x, const Matrix& weight, const Matrix& bias, double scale,
                             GateActivation activation) {
    Matrix y(x.rows, weight.rows);
    for (int64_t t = 0; t < y.rows; ++t) {
        for (int64_t n = 0; n < y.cols; ++n)
            y(t, n) = activated(before_activation(x, weight, bias, scale, t, n), activation);
    }
    return y;
}

NarrowLinearBackward narrow_linear_backward(const Matrix& dy, const Matrix& x, const Matrix& weight,
                                            const Matrix& bias, double scale, GateActivation activation) {
    Matrix dz(dy.rows, dy.cols);
    for (int64_t t = 0; t < dz.rows; ++t) {
        for (int64_t n = 0; n < dz.cols; ++n) {
            const double z = before_activation(x, weight, bias, scale, t, n);
            dz(t, n) = scale * dy(t, n) * derivative(z, activation);
        }
    }
    return {matmul(dz, weight), matmul(transposed(dz), x), column_sum(dz)};
}

}  // namespace speedrun::reference
