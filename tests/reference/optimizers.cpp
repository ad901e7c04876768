#include <array>
#include <cmath>
#include <limits>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

// a, b, c of the five iterations of Polar Express, for singular values in [~1/1000, 1].
constexpr std::array<std::array<double, 3>, 5> kPolarExpress = {{
    {8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323},
}};

}  // namespace

void adamw_step(Matrix& master, Matrix& first_moment, Matrix& second_moment, const Matrix& grad,
                double grad_scale, const AdamwNumbers& numbers) {
    if (!std::isfinite(grad_scale)) return;
    // The fields are floats; the formula uses their exact values.
    const double beta1 = numbers.beta1, beta2 = numbers.beta2;
    const double step = static_cast<double>(numbers.step);
    for (int64_t i = 0; i < master.size(); ++i) {
        const double g = grad[i] * grad_scale;
        first_moment[i] = beta1 * first_moment[i] + (1.0 - beta1) * g;
        second_moment[i] = beta2 * second_moment[i] + (1.0 - beta2) * g * g;
        const double m = first_moment[i] / (1.0 - std::pow(beta1, step));
        const double v = second_moment[i] / (1.0 - std::pow(beta2, step));
        const double update = m / (std::sqrt(v) + static_cast<double>(numbers.epsilon));
        const double product = update * master[i];
        const bool decays = !numbers.cautious || (numbers.decays_unmoved ? product >= 0.0 : product > 0.0);
        const double decay = decays ? static_cast<double>(numbers.weight_decay) * master[i] : 0.0;
        master[i] -= static_cast<double>(numbers.learning_rate) * (update + decay);
    }
}

Matrix muon_momentum(Matrix& momentum, const Matrix& grad, double grad_scale, float mu, bool nesterov) {
    Matrix update(momentum.rows, momentum.cols);
    if (!std::isfinite(grad_scale)) return update;
    const double kept = mu;
    for (int64_t i = 0; i < momentum.size(); ++i) {
        const double g = grad[i] * grad_scale;
        momentum[i] = kept * momentum[i] + (1.0 - kept) * g;
        update[i] = nesterov ? (1.0 - kept) * g + kept * momentum[i] : momentum[i];
    }
    return update;
}

Matrix gram(const Matrix& x) {
    return matmul(x, transposed(x));
}

Matrix polar_express(const Matrix& x, double epsilon) {
    if (x.rows > x.cols) return transposed(polar_express(transposed(x), epsilon));
    Matrix y = times(x, 1.0 / (1.02 * norm(x) + epsilon));
    for (const auto& [a, b, c] : kPolarExpress) {
        const Matrix g = gram(y);
        y = plus(times(y, a), matmul(plus(times(g, b), times(matmul(g, g), c)), y));
    }
    return y;
}

void normuon_scale(Matrix& update, Matrix& second_moment, float beta2, NormuonLines lines, float epsilon) {
    const double kept = beta2, before = norm(update);
    const bool longer_side = lines == NormuonLines::more;
    const bool rowwise = longer_side ? update.rows >= update.cols : lines == NormuonLines::rows;
    for (int64_t line = 0; line < (rowwise ? update.rows : update.cols); ++line) {
        const int64_t length = rowwise ? update.cols : update.rows;
        const auto element = [&](int64_t i) -> double& {
            return rowwise ? update(line, i) : update(i, line);
        };
        double mean = 0.0;
        for (int64_t i = 0; i < length; ++i) mean += element(i) * element(i) / static_cast<double>(length);
        second_moment[line] = kept * second_moment[line] + (1.0 - kept) * mean;
        const double divisor = std::sqrt(second_moment[line]) + static_cast<double>(epsilon);
        for (int64_t i = 0; i < length; ++i) element(i) /= divisor;
    }
    const double after = norm(update);
    if (after > 0.0) update = times(update, before / after);
}

void muon_apply(Matrix& master, const Matrix& update, float learning_rate, float weight_decay,
                bool cautious) {
    for (int64_t i = 0; i < master.size(); ++i) {
        const bool decays = !cautious || update[i] * master[i] >= 0.0;
        const double decay = decays ? static_cast<double>(weight_decay) * master[i] : 0.0;
        master[i] -= static_cast<double>(learning_rate) * (update[i] + decay);
    }
}

double norm_term(const Matrix& x, VectorNorm norm) {
    double result = 0.0;
    for (double value : x.values) {
        const double magnitude = std::abs(value);
        if (norm == VectorNorm::one) result += magnitude;
        if (norm == VectorNorm::two) result += magnitude * magnitude;
        if (norm == VectorNorm::three) result += magnitude * magnitude * magnitude;
        if (norm == VectorNorm::infinity)
            result = std::isnan(result) || result >= magnitude ? result : magnitude;
    }
    return result;
}

Clip clip_coefficient(const Matrix& terms, double max_norm, VectorNorm kind) {
    const bool largest = kind == VectorNorm::infinity;
    const double total = norm_term(terms, largest ? kind : VectorNorm::one);  // no term is negative
    const double norm = kind == VectorNorm::two     ? std::sqrt(total)
                        : kind == VectorNorm::three ? std::cbrt(total)
                                                    : total;
    if (!std::isfinite(norm)) return {norm, std::numeric_limits<double>::quiet_NaN()};
    if (max_norm == 0.0 || norm <= max_norm) return {norm, 1.0};
    return {norm, max_norm / norm};
}

}  // namespace speedrun::reference
