// Gradients against central differences, in float64.
//
// Tolerance: h = 1e-5 on values of order 1. The truncation error is h² ≈ 1e-10 and the rounding error
// 2⁻⁵³·|loss|/h ≈ 1e-10, both relative to gradients of order 1. A wrong term errs by far more than 1e-6.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/reference/reference.h"

namespace speedrun::reference {

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-6;

inline Matrix random(int64_t rows, int64_t cols, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    Matrix x(rows, cols);
    for (double& value : x.values) value = normal(generator);
    return x;
}

// `loss` reads x, which is modified and restored.
inline void expect_gradient(Matrix& x, const Matrix& gradient, const std::function<double()>& loss,
                            const char* name) {
    ASSERT_EQ(x.size(), gradient.size()) << name;
    const double typical = norm(gradient) / std::sqrt(static_cast<double>(gradient.size()));
    for (int64_t i = 0; i < x.size(); ++i) {
        const double value = x[i];
        x[i] = value + kStep;
        const double above = loss();
        x[i] = value - kStep;
        const double below = loss();
        x[i] = value;
        const double expected = (above - below) / (2.0 * kStep);
        ASSERT_NEAR(gradient[i], expected, kTolerance * (std::abs(expected) + typical) + 1e-9)
            << "d" << name << "[" << i << "] of " << x.rows << "x" << x.cols;
    }
}

}  // namespace speedrun::reference
