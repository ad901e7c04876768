#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

double capped(double z, const Softcap& softcap) {
    if (softcap.cap <= 0.0f) return z;
    const double cap = softcap.cap, scale = softcap.scale > 0.0f ? softcap.scale : softcap.cap;
    return cap * std::tanh((z + static_cast<double>(softcap.shift)) / scale);
}

// d capped / dz = cap/scale·(1 − tanh²), and tanh = capped/cap
double capped_derivative(double z, const Softcap& softcap) {
    if (softcap.cap <= 0.0f) return 1.0;
    const double cap = softcap.cap, scale = softcap.scale > 0.0f ? softcap.scale : softcap.cap;
    const double t = capped(z, softcap) / cap;
    return cap / scale * (1.0 - t * t);
}

double log_sum_exp(const Matrix& logits, int64_t t, int64_t vocab_size, const Softcap& softcap) {
    double largest = capped(logits(t, 0), softcap);
    for (int64_t v = 1; v < vocab_size; ++v) {
        largest = std::max(largest, capped(logits(t, v), softcap));
    }
    double sum = 0.0;
    for (int64_t v = 0; v < vocab_size; ++v) {
        sum += std::exp(capped(logits(t, v), softcap) - largest);
    }
    return largest + std::log(sum);
}

}  // namespace

Matrix cross_entropy_losses(const Matrix& logits, const Indices& targets, int64_t vocab_size,
                            const Softcap& softcap) {
    Matrix losses(1, logits.rows);
    for (int64_t t = 0; t < logits.rows; ++t) {
        if (targets[t] < 0) continue;
        losses[t] = log_sum_exp(logits, t, vocab_size, softcap) - capped(logits(t, targets[t]), softcap);
    }
    return losses;
}

// d loss / d capped_v = softmax_v − [v is the target]
Matrix cross_entropy_dlogits(const Matrix& logits, const Indices& targets, int64_t vocab_size,
                             const Softcap& softcap, float gradient_scale) {
    Matrix dlogits(logits.rows, logits.cols);
    for (int64_t t = 0; t < logits.rows; ++t) {
        if (targets[t] < 0) continue;
        const double lse = log_sum_exp(logits, t, vocab_size, softcap);
        for (int64_t v = 0; v < vocab_size; ++v) {
            const double z = logits(t, v);
            const double probability = std::exp(capped(z, softcap) - lse);
            dlogits(t, v) = static_cast<double>(gradient_scale) *
                            (probability - (v == targets[t] ? 1.0 : 0.0)) * capped_derivative(z, softcap);
        }
    }
    return dlogits;
}

// Several weighted targets per row: sums over them in order.
Matrix weighted_cross_entropy_losses(const Matrix& logits, const std::vector<Indices>& targets,
                                     const std::vector<double>& weights, int64_t vocab_size,
                                     const Softcap& softcap) {
    Matrix sum(1, logits.rows);
    for (size_t k = 0; k < targets.size(); ++k)
        sum = plus(sum, times(cross_entropy_losses(logits, targets[k], vocab_size, softcap), weights[k]));
    return sum;
}

Matrix weighted_cross_entropy_dlogits(const Matrix& logits, const std::vector<Indices>& targets,
                                      const std::vector<double>& weights, int64_t vocab_size,
                                      const Softcap& softcap, float gradient_scale) {
    Matrix sum(logits.rows, logits.cols);
    for (size_t k = 0; k < targets.size(); ++k)
        sum = plus(sum, times(cross_entropy_dlogits(logits, targets[k], vocab_size, softcap, gradient_scale),
                              weights[k]));
    return sum;
}

Matrix cross_entropy_part(const Matrix& logits, const std::vector<Indices>& targets,
                          const std::vector<double>& weights, const IdRange& ids, const Softcap& softcap) {
    Matrix part(logits.rows, 2);
    for (int64_t t = 0; t < logits.rows; ++t) {
        part(t, 0) = ids.size > 0 ? log_sum_exp(logits, t, ids.size, softcap)
                                  : -std::numeric_limits<double>::infinity();
        for (size_t k = 0; k < targets.size(); ++k) {
            const int64_t column = targets[k][t] - ids.first;
            if (targets[k][t] >= 0 && column >= 0 && column < ids.size)
                part(t, 1) += weights[k] * capped(logits(t, column), softcap);
        }
    }
    return part;
}

}  // namespace speedrun::reference
