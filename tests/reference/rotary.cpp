#include <cmath>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

// Rotates the pairs (u_i, u_{i+D/2}) of one head's vector at column `begin` by their angles, or back.
void turn(Matrix& u, int64_t t, int64_t begin, int64_t half, const Matrix& cos, const Matrix& sin,
          int64_t position, bool back) {
    for (int64_t i = 0; i < half; ++i) {
        const double c = cos(position, i);
        const double s = back ? -sin(position, i) : sin(position, i);
        const double first = u(t, begin + i);
        const double second = u(t, begin + half + i);
        u(t, begin + i) = first * c - second * s;
        u(t, begin + half + i) = first * s + second * c;
    }
}

int32_t position_of(const Indices& position, int64_t rows, int64_t t, int64_t head) {
    const int64_t of_a_token = static_cast<int64_t>(position.size()) / rows;
    return position[t * of_a_token + head % of_a_token];
}

double reciprocal_rms(const Matrix& u, int64_t t, int64_t begin, const RotaryOptions& options) {
    double sum = 0.0;
    for (int64_t d = 0; d < options.head_dim; ++d) sum += u(t, begin + d) * u(t, begin + d);
    return 1.0 /
           std::sqrt(sum / static_cast<double>(options.head_dim) + static_cast<double>(options.epsilon));
}

bool stands(int64_t column, const KeyOffsetOptions& options) {
    return column % options.head_dim % (options.head_dim / 2) >= options.rotated_pairs;
}

}  // namespace

RotaryForward qk_norm_rotary_forward(const Matrix& u, const Matrix& cos, const Matrix& sin,
                                     const Indices& position, const RotaryOptions& options) {
    const int64_t head_dim = options.head_dim;
    RotaryForward out{u, Matrix(u.rows, options.num_heads, 1.0)};
    for (int64_t t = 0; t < u.rows; ++t) {
        for (int64_t h = 0; h < options.num_heads; ++h) {
            const int64_t begin = h * head_dim;
            if (options.normalize) {
                out.rstd(t, h) = reciprocal_rms(u, t, begin, options);
                for (int64_t d = 0; d < head_dim; ++d) out.u(t, begin + d) *= out.rstd(t, h);
            }
            if (options.rotate)
                turn(out.u, t, begin, head_dim / 2, cos, sin, position_of(position, u.rows, t, h), false);
        }
    }
    return out;
}

// The transpose of a rotation is its inverse; the rest is the backward of an rmsnorm over D.
Matrix qk_norm_rotary_backward(const Matrix& dout, const Matrix& u, const Matrix& cos, const Matrix& sin,
                               const Indices& position, const RotaryOptions& options) {
    const int64_t head_dim = options.head_dim;
    Matrix du = dout;
    for (int64_t t = 0; t < u.rows; ++t) {
        for (int64_t h = 0; h < options.num_heads; ++h) {
            const int64_t begin = h * head_dim;
            if (options.rotate)
                turn(du, t, begin, head_dim / 2, cos, sin, position_of(position, u.rows, t, h), true);
            if (!options.normalize) continue;
            const double rstd = reciprocal_rms(u, t, begin, options);
            double mean = 0.0;
            for (int64_t d = 0; d < head_dim; ++d) {
                mean += du(t, begin + d) * u(t, begin + d) * rstd / static_cast<double>(head_dim);
            }
            for (int64_t d = 0; d < head_dim; ++d) {
                du(t, begin + d) = rstd * (du(t, begin + d) - u(t, begin + d) * rstd * mean);
            }
        }
    }
    return du;
}

Matrix offset_keys_forward(const Matrix& x, const KeyOffsetOptions& options) {
    Matrix y = x;
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t i = 0; i < x.cols; ++i)
            if (t % options.sequence_length > 0 && stands(i, options)) y(t, i) = x(t - 1, i);
    }
    return y;
}

Matrix offset_keys_backward(const Matrix& dy, const KeyOffsetOptions& options) {
    Matrix dx(dy.rows, dy.cols);
    for (int64_t t = 0; t < dy.rows; ++t) {
        for (int64_t i = 0; i < dy.cols; ++i)
            dx(t % options.sequence_length > 0 && stands(i, options) ? t - 1 : t, i) += dy(t, i);
    }
    return dx;
}

}  // namespace speedrun::reference
