#include <algorithm>
#include <cmath>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

double capped(double z, double softcap) {
    return softcap > 0.0 ? softcap * std::tanh(z / softcap) : z;
}

// d capped / dz = 1 − tanh²(z/c)
double capped_derivative(double z, double softcap) {
    if (softcap <= 0.0) return 1.0;
    const double t = std::tanh(z / softcap);
    return 1.0 - t * t;
}

double log_sum_exp(const Matrix& logits, int64_t t, const CrossEntropyOptions& options) {
    double largest = capped(logits(t, 0), options.softcap);
    for (int64_t v = 1; v < options.vocab_size; ++v) {
        largest = std::max(largest, capped(logits(t, v), options.softcap));
    }
    double sum = 0.0;
    for (int64_t v = 0; v < options.vocab_size; ++v) {
        sum += std::exp(capped(logits(t, v), options.softcap) - largest);
    }
    return largest + std::log(sum);
}

}  // namespace

Matrix cross_entropy_losses(const Matrix& logits, const Indices& targets,
                            const CrossEntropyOptions& options) {
    Matrix losses(1, logits.rows);
    for (int64_t t = 0; t < logits.rows; ++t) {
        if (targets[t] < 0) continue;
        losses[t] = log_sum_exp(logits, t, options) - capped(logits(t, targets[t]), options.softcap);
    }
    return losses;
}

// d loss / d capped_v = softmax_v − [v is the target]
Matrix cross_entropy_dlogits(const Matrix& logits, const Indices& targets,
                             const CrossEntropyOptions& options) {
    Matrix dlogits(logits.rows, logits.cols);
    for (int64_t t = 0; t < logits.rows; ++t) {
        if (targets[t] < 0) continue;
        const double lse = log_sum_exp(logits, t, options);
        for (int64_t v = 0; v < options.vocab_size; ++v) {
            const double z = logits(t, v);
            const double probability = std::exp(capped(z, options.softcap) - lse);
            dlogits(t, v) = static_cast<double>(options.gradient_scale) *
                            (probability - (v == targets[t] ? 1.0 : 0.0)) *
                            capped_derivative(z, options.softcap);
        }
    }
    return dlogits;
}

}  // namespace speedrun::reference
