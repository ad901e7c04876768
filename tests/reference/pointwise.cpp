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

}  // namespace

Matrix activation_forward(const Matrix& x, Activation activation) {
    Matrix y(x.rows, x.cols);
    for (int64_t i = 0; i < x.size(); ++i) {
        const double positive = x[i] > 0.0 ? x[i] : 0.0;
        y[i] = activation == Activation::relu_squared ? positive * positive : gelu(x[i]);
    }
    return y;
}

Matrix activation_backward(const Matrix& dy, const Matrix& x, Activation activation) {
    Matrix dx(x.rows, x.cols);
    for (int64_t i = 0; i < x.size(); ++i) {
        const double positive = x[i] > 0.0 ? x[i] : 0.0;
        dx[i] = dy[i] * (activation == Activation::relu_squared ? 2.0 * positive : gelu_derivative(x[i]));
    }
    return dx;
}

Matrix mix_forward(const Matrix& x, const Matrix& z, const Matrix& coefficients) {
    return plus(times(x, coefficients[0]), times(z, coefficients[1]));
}

MixBackward mix_backward(const Matrix& dy, const Matrix& x, const Matrix& z, const Matrix& coefficients) {
    MixBackward out{times(dy, coefficients[0]), times(dy, coefficients[1]), Matrix(1, 2)};
    out.dcoefficients[0] = dot(dy, x);
    out.dcoefficients[1] = dot(dy, z);
    return out;
}

}  // namespace speedrun::reference
