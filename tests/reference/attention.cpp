#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

double head_dot(const Matrix& a, int64_t i, const Matrix& b, int64_t j, int64_t begin, int64_t width) {
    double sum = 0.0;
    for (int64_t d = 0; d < width; ++d) sum += a(i, begin + d) * b(j, begin + d);
    return sum;
}

struct Probabilities {
    std::vector<double> p;  // probability of each key j, 0 if invisible to i
    double lse;
};

Probabilities softmax_row(const Matrix& q, const Matrix& k, int64_t i, int64_t begin,
                          const Indices& first_key, const AttentionOptions& options,
                          const QueryPositions& places) {
    Probabilities row{std::vector<double>(k.rows, 0.0), 0.0};
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < k.rows; ++j) {
        if (!visible(i, j, first_key, options, places)) continue;
        row.p[j] = static_cast<double>(options.scale) * head_dot(q, i, k, j, begin, options.head_dim);
        largest = std::max(largest, row.p[j]);
    }
    double sum = 0.0;
    for (int64_t j = 0; j < k.rows; ++j) {
        if (visible(i, j, first_key, options, places)) sum += std::exp(row.p[j] - largest);
    }
    row.lse = sum > 0.0 ? largest + std::log(sum) : largest;  // −∞ without visible keys
    for (int64_t j = 0; j < k.rows; ++j) {
        row.p[j] = visible(i, j, first_key, options, places) ? std::exp(row.p[j] - row.lse) : 0.0;
    }
    return row;
}

}  // namespace

bool visible(int64_t i, int64_t j, const Indices& first_key, const AttentionOptions& options,
             const QueryPositions& places) {
    const int64_t length = options.sequence_length;
    const bool given = !places.place.empty();
    const int64_t sequence = i / (given ? places.of_sequence : length);
    const int64_t key_of_query = given ? sequence * length + places.place[i] : i;  // the last visible key
    const bool inside_window = options.window == 0 || key_of_query - j < options.window;
    return sequence == j / length && j >= first_key[i] && j <= key_of_query && inside_window;
}

AttentionForward attention_forward(const Matrix& q, const Matrix& k, const Matrix& v,
                                   const Indices& first_key, const AttentionOptions& options,
                                   const QueryPositions& places) {
    AttentionForward out{Matrix(q.rows, v.cols), Matrix(options.num_heads, q.rows)};
    const int64_t value_dim = v.cols / options.num_heads;
    for (int64_t h = 0; h < options.num_heads; ++h) {
        const int64_t begin = h * options.head_dim;
        for (int64_t i = 0; i < q.rows; ++i) {
            const Probabilities row = softmax_row(q, k, i, begin, first_key, options, places);
            out.lse(h, i) = row.lse;
            for (int64_t j = 0; j < k.rows; ++j) {
                if (row.p[j] == 0.0) continue;
                for (int64_t d = h * value_dim; d < (h + 1) * value_dim; ++d)
                    out.o(i, d) += row.p[j] * v(j, d);
            }
        }
    }
    return out;
}

// dV = Pᵀ dO;  dP = dO Vᵀ;  dS = P ∘ (dP − rowsum(P ∘ dP));  dQ = scale·dS K;  dK = scale·dSᵀ Q.
AttentionBackward attention_backward(const Matrix& dout, const Matrix& q, const Matrix& k, const Matrix& v,
                                     const Indices& first_key, const AttentionOptions& options,
                                     const QueryPositions& places) {
    AttentionBackward out{Matrix(q.rows, q.cols), Matrix(k.rows, k.cols), Matrix(v.rows, v.cols)};
    const int64_t value_dim = v.cols / options.num_heads;
    const double scale = static_cast<double>(options.scale);
    for (int64_t h = 0; h < options.num_heads; ++h) {
        const int64_t begin = h * options.head_dim;
        for (int64_t i = 0; i < q.rows; ++i) {
            const std::vector<double> p = softmax_row(q, k, i, begin, first_key, options, places).p;
            std::vector<double> dp(k.rows, 0.0);
            double row_sum = 0.0;
            for (int64_t j = 0; j < k.rows; ++j) {
                if (p[j] == 0.0) continue;
                dp[j] = head_dot(dout, i, v, j, h * value_dim, value_dim);
                row_sum += p[j] * dp[j];
            }
            for (int64_t j = 0; j < k.rows; ++j) {
                if (p[j] == 0.0) continue;
                const double ds = p[j] * (dp[j] - row_sum);
                for (int64_t d = h * value_dim; d < (h + 1) * value_dim; ++d)
                    out.dv(j, d) += p[j] * dout(i, d);
                for (int64_t d = begin; d < begin + options.head_dim; ++d) {
                    out.dq(i, d) += scale * ds * k(j, d);
                    out.dk(j, d) += scale * ds * q(i, d);
                }
            }
        }
    }
    return out;
}

Matrix exclude_own_value_forward(const Matrix& o, const Matrix& v, const Matrix& alpha, int64_t heads) {
    const int64_t dim = o.cols / heads;
    Matrix y = o;
    for (int64_t t = 0; t < o.rows; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
            const double square = std::max(head_dot(v, t, v, t, h * dim, dim), 1e-8);
            const double share = head_dot(o, t, v, t, h * dim, dim) / square;
            for (int64_t d = h * dim; d < (h + 1) * dim; ++d)
                y(t, d) -= std::tanh(alpha(alpha.rows == 1 ? 0 : t, h)) * share * v(t, d);
        }
    }
    return y;
}

// Quotient rule on (o·v)/n: with u = v/n, y = o − a·(o·v)·u and dn = 2·v·dv if n is |v|².
ExcludeOwnValueBackward exclude_own_value_backward(const Matrix& dy, const Matrix& o, const Matrix& v,
                                                   const Matrix& alpha, int64_t heads) {
    const int64_t dim = o.cols / heads;
    ExcludeOwnValueBackward out{dy, Matrix(v.rows, v.cols), Matrix(alpha.rows, alpha.cols)};
    for (int64_t t = 0; t < o.rows; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t begin = h * dim, of_alpha = alpha.rows == 1 ? 0 : t;
            const double a = std::tanh(alpha(of_alpha, h)), square = head_dot(v, t, v, t, begin, dim),
                         n = std::max(square, 1e-8), own = head_dot(o, t, v, t, begin, dim),
                         given = head_dot(dy, t, v, t, begin, dim);
            out.dalpha(of_alpha, h) -= (1 - a * a) * own * given / n;
            for (int64_t d = begin; d < begin + dim; ++d) {
                out.d_o(t, d) -= a * given / n * v(t, d);
                out.dv(t, d) -= a / n * (given * o(t, d) + own * dy(t, d));
                if (square > 1e-8) out.dv(t, d) += a * own * given / (n * n) * 2 * v(t, d);
            }
        }
    }
    return out;
}

}  // namespace speedrun::reference
