#include <cmath>
#include <numbers>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

const double kRootTwoOverPi = std::sqrt(2.0 / std::numbers::pi);
constexpr double kCubic = 0.044715;

double gelu(double x) {
    return 0.5 * x * (1.0 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}

double gelu_derivative(double x) {
    const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kRootTwoOverPi * (1.0 + 3.0 * kCubic * x * x);
}

double normal_below(double x) {
    return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

double value_of(double x, Activation activation) {
    const double positive = x > 0.0 ? x : 0.0;
    if (activation == Activation::relu_squared) return positive * positive;
    return activation == Activation::gelu_erf ? x * normal_below(x) : gelu(x);
}

double derivative_of(double x, Activation activation) {
    if (activation == Activation::relu_squared) return x > 0.0 ? 2.0 * x : 0.0;
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    return activation == Activation::gelu_erf ? normal_below(x) + x * density : gelu_derivative(x);
}

}  // namespace

Matrix activation_forward(const Matrix& x, Activation activation) {
    Matrix y(x.rows, x.cols);
    for (int64_t i = 0; i < x.size(); ++i) y[i] = value_of(x[i], activation);
    return y;
}

Matrix activation_backward(const Matrix& dy, const Matrix& x, Activation activation) {
    Matrix dx(x.rows, x.cols);
    for (int64_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * derivative_of(x[i], activation);
    return dx;
}

}  // namespace speedrun::reference
