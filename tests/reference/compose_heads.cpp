#include <cmath>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

// P of a head: T×T, 0 for invisible keys.
Matrix map_of(const Matrix& q, const Matrix& k, int64_t head, const Indices& first_key,
              const ComposeHeadsOptions& o) {
    const AttentionOptions seen{.sequence_length = o.sequence_length,
                                .num_heads = o.num_heads,
                                .head_dim = o.head_dim,
                                .window = o.keys};
    const Matrix products = matmul(column_block(q, head * o.head_dim, o.head_dim),
                                   transposed(column_block(k, head * o.head_dim, o.head_dim)));
    Matrix p(q.rows, q.rows);
    for (int64_t i = 0; i < p.rows; ++i) {
        double sum = 0.0;
        for (int64_t j = 0; j < p.cols; ++j) {
            if (visible(i, j, first_key, seen))
                p(i, j) = std::exp(static_cast<double>(o.scale) * products(i, j));
            sum += p(i, j);
        }
        for (int64_t j = 0; j < p.cols; ++j) p(i, j) = sum > 0.0 ? p(i, j) / sum : 0.0;
    }
    return p;
}

Matrix of_tokens(const Matrix& w, int64_t rows) {
    Matrix y(rows, w.cols);
    for (int64_t i = 0; i < y.size(); ++i) y[i] = w(w.rows == 1 ? 0 : i / w.cols, i % w.cols);
    return y;
}

Matrix normed(const Matrix& w1, float epsilon) {
    return norm_forward(w1, {}, {}, NormKind::rmsnorm, epsilon).y;
}

// Columns of a head, times one factor per row.
Matrix weighted(const Matrix& x, const Matrix& w, int64_t head, int64_t dim) {
    Matrix y = column_block(x, head * dim, dim);
    for (int64_t i = 0; i < y.rows; ++i)
        for (int64_t d = 0; d < dim; ++d) y(i, d) *= w(i, head);
    return y;
}

void put(Matrix& to, const Matrix& columns, int64_t head) {
    for (int64_t i = 0; i < columns.rows; ++i)
        for (int64_t d = 0; d < columns.cols; ++d) to(i, head * columns.cols + d) = columns(i, d);
}

Matrix mix_of(const std::vector<Matrix>& maps, const Matrix& u) {
    Matrix mixed(maps.front().rows, maps.front().cols);
    for (size_t h = 0; h < maps.size(); ++h)
        for (int64_t i = 0; i < mixed.rows; ++i)
            for (int64_t j = 0; j < mixed.cols; ++j)
                mixed(i, j) += u(i, static_cast<int64_t>(h)) * maps[h](i, j);
    return mixed;
}

std::vector<Matrix> maps_of(const Matrix& q, const Matrix& k, const Indices& first_key,
                            const ComposeHeadsOptions& o) {
    std::vector<Matrix> maps;
    for (int64_t h = 0; h < o.num_heads; ++h) maps.push_back(map_of(q, k, h, first_key, o));
    return maps;
}

// Sum over tokens for a weight that all tokens share.
Matrix in_shape_of(const Matrix& w, const Matrix& of_each) {
    return w.rows == 1 ? column_sum(of_each) : of_each;
}

}  // namespace

Matrix compose_heads_forward(const ComposedHeads& x, const ComposeHeadsOptions& o) {
    const Matrix u = normed(of_tokens(x.w1, x.q.rows), o.epsilon), w2 = of_tokens(x.w2, x.q.rows);
    const Matrix mixed = mix_of(maps_of(x.q, x.k, x.first_key, o), u);
    Matrix c(x.q.rows, x.q.cols);
    for (int64_t h = 0; h < o.num_heads; ++h) put(c, weighted(matmul(mixed, x.v), w2, h, o.head_dim), h);
    return c;
}

// C = W2 (A V) head by head; dA = Σ_h (W2 dC_h) V_hᵀ; dP_h = u_h dA; dS = P ∘ (dP − rowsum(P ∘ dP)).
ComposeHeadsBackward compose_heads_backward(const Matrix& dc, const ComposedHeads& x,
                                            const ComposeHeadsOptions& o) {
    const int64_t rows = x.q.rows, dim = o.head_dim;
    const Matrix w1 = of_tokens(x.w1, rows), u = normed(w1, o.epsilon), w2 = of_tokens(x.w2, rows);
    const std::vector<Matrix> maps = maps_of(x.q, x.k, x.first_key, o);
    const Matrix mixed = mix_of(maps, u);
    Matrix dmixed(rows, rows), du(rows, o.num_heads), dw2(rows, o.num_heads);
    ComposeHeadsBackward out{Matrix(rows, x.q.cols), Matrix(rows, x.q.cols), Matrix(rows, x.q.cols), {}, {}};
    for (int64_t h = 0; h < o.num_heads; ++h) {
        const Matrix of_values = weighted(dc, w2, h, dim), v = column_block(x.v, h * dim, dim),
                     seen = matmul(mixed, v), dc_of_head = column_block(dc, h * dim, dim);
        dmixed = plus(dmixed, matmul(of_values, transposed(v)));
        put(out.dv, matmul(transposed(mixed), of_values), h);
        for (int64_t i = 0; i < rows; ++i)
            dw2(i, h) = dot(row_block(seen, i, 1), row_block(dc_of_head, i, 1));
    }
    for (int64_t h = 0; h < o.num_heads; ++h) {
        const Matrix& p = maps[static_cast<size_t>(h)];
        Matrix ds(rows, rows);
        for (int64_t i = 0; i < rows; ++i) {
            du(i, h) = dot(row_block(p, i, 1), row_block(dmixed, i, 1));
            for (int64_t j = 0; j < rows; ++j)
                ds(i, j) = static_cast<double>(o.scale) * u(i, h) * p(i, j) * (dmixed(i, j) - du(i, h));
        }
        put(out.dq, matmul(ds, column_block(x.k, h * dim, dim)), h);
        put(out.dk, matmul(transposed(ds), column_block(x.q, h * dim, dim)), h);
    }
    out.dw1 = in_shape_of(x.w1, norm_backward(du, w1, {}, NormKind::rmsnorm, o.epsilon).ds);
    out.dw2 = in_shape_of(x.w2, dw2);
    return out;
}

}  // namespace speedrun::reference
