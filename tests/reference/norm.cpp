#include <cmath>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

double row_mean(const Matrix& x, int64_t t) {
    double sum = 0.0;
    for (int64_t c = 0; c < x.cols; ++c) sum += x(t, c);
    return sum / static_cast<double>(x.cols);
}

// mean((s − centre)²)
double mean_square(const Matrix& s, int64_t t, double centre) {
    double sum = 0.0;
    for (int64_t c = 0; c < s.cols; ++c) sum += (s(t, c) - centre) * (s(t, c) - centre);
    return sum / static_cast<double>(s.cols);
}

}  // namespace

NormForward norm_forward(const Matrix& s, const Matrix& gain, const Matrix& bias, NormKind kind,
                         float epsilon) {
    NormForward out{Matrix(s.rows, s.cols), Matrix(1, s.rows), Matrix(1, s.rows)};
    for (int64_t t = 0; t < s.rows; ++t) {
        const double mean = kind == NormKind::layernorm ? row_mean(s, t) : 0.0;
        const double rstd = 1.0 / std::sqrt(mean_square(s, t, mean) + static_cast<double>(epsilon));
        for (int64_t c = 0; c < s.cols; ++c) {
            out.y(t, c) = (s(t, c) - mean) * rstd;
            if (!gain.empty()) out.y(t, c) *= gain[c];
            if (!bias.empty()) out.y(t, c) += bias[c];
        }
        out.mean[t] = mean;
        out.rstd[t] = rstd;
    }
    return out;
}

// With ŝ = (s − mean)·rstd and g = dy·gain: ds = rstd·(g − ŝ·mean(g·ŝ)), for layernorm also − rstd·mean(g). The
// subtracted terms are the derivatives through rstd and mean.
NormBackward norm_backward(const Matrix& dy, const Matrix& s, const Matrix& gain, NormKind kind,
                           float epsilon) {
    const NormForward plain = norm_forward(s, {}, {}, kind, epsilon);  // its y is ŝ
    NormBackward out{Matrix(s.rows, s.cols), Matrix(1, s.cols), Matrix(1, s.cols)};
    const double count = static_cast<double>(s.cols);
    for (int64_t t = 0; t < s.rows; ++t) {
        double mean_g = 0.0, mean_gs = 0.0;
        for (int64_t c = 0; c < s.cols; ++c) {
            const double g = gain.empty() ? dy(t, c) : dy(t, c) * gain[c];
            mean_g += g / count;
            mean_gs += g * plain.y(t, c) / count;
        }
        if (kind == NormKind::rmsnorm) mean_g = 0.0;
        for (int64_t c = 0; c < s.cols; ++c) {
            const double g = gain.empty() ? dy(t, c) : dy(t, c) * gain[c];
            out.ds(t, c) = plain.rstd[t] * (g - mean_g - plain.y(t, c) * mean_gs);
            out.dgain[c] += dy(t, c) * plain.y(t, c);
            out.dbias[c] += dy(t, c);
        }
    }
    return out;
}

}  // namespace speedrun::reference
