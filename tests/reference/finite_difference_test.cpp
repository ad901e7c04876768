// Checks the reference: each backward against central differences of its forward, in float64.
#include <algorithm>

#include "tests/reference/differences.h"

namespace speedrun::reference::finite_difference_test {

TEST(FiniteDifference, Embedding) {
    const Indices index = {3, 0, 3, 1, 3}, position = {0, 1, 2, 0, 1};
    Matrix table = random(5, 4, 1), positions = random(3, 4, 2);
    const Matrix dout = random(5, 4, 3);
    const auto loss = [&] { return dot(dout, embedding_forward(index, table, position, positions)); };
    expect_gradient(table, embedding_backward(5, index, dout), loss, "table");
    expect_gradient(positions, embedding_backward(3, position, dout), loss, "position_table");

    const Matrix signs = random(2, 4, 4);
    const Indices row = {1, 0, 0, 1, 1};
    const auto signed_loss = [&] {
        return dot(dout, with_signs(embedding_forward(index, table, {}, {}), signs, row));
    };
    expect_gradient(table, embedding_backward(5, index, with_signs(dout, signs, row)), signed_loss,
                    "signed table");
}

TEST(FiniteDifference, MatmulAndBias) {
    Matrix a = random(4, 3, 1), b = random(3, 5, 2), bias = random(1, 5, 3);
    const Matrix dc = random(4, 5, 4);
    const auto loss = [&] {
        Matrix c = matmul(a, b);
        for (int64_t m = 0; m < c.rows; ++m) {
            for (int64_t n = 0; n < c.cols; ++n) c(m, n) += bias[n];
        }
        return dot(dc, c);
    };
    expect_gradient(a, matmul(dc, transposed(b)), loss, "a");
    expect_gradient(b, matmul(transposed(a), dc), loss, "b");
    expect_gradient(bias, column_sum(dc), loss, "bias");
}

TEST(FiniteDifference, Norms) {
    for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
        for (bool affine : {false, true}) {
            Matrix s = random(3, 8, 1);
            Matrix gain = affine ? random(1, 8, 2) : Matrix();
            Matrix bias = affine ? random(1, 8, 3) : Matrix();
            const Matrix dy = random(3, 8, 4);
            const NormBackward backward = norm_backward(dy, s, gain, kind);
            const auto loss = [&] { return dot(dy, norm_forward(s, gain, bias, kind).y); };
            expect_gradient(s, backward.ds, loss, "s");
            if (!affine) continue;
            expect_gradient(gain, backward.dgain, loss, "gain");
            expect_gradient(bias, backward.dbias, loss, "bias");
        }
    }
}

// The residual stream s = x + delta continues next to its norm: its gradient is ds plus the gradient from
// later layers.
TEST(FiniteDifference, NormWithResidual) {
    Matrix x = random(3, 8, 1), delta = random(3, 8, 2);
    const Matrix dy = random(3, 8, 3), dresidual = random(3, 8, 4);
    const auto loss = [&] {
        const Matrix s = plus(x, delta);
        return dot(dy, norm_forward(s, {}, {}, NormKind::rmsnorm).y) + dot(dresidual, s);
    };
    const Matrix ds = plus(norm_backward(dy, plus(x, delta), {}, NormKind::rmsnorm).ds, dresidual);
    expect_gradient(x, ds, loss, "x");
    expect_gradient(delta, ds, loss, "delta");
}

// Differences through the weighted sum between sum and norm. x and delta have equal gradients.
TEST(FiniteDifference, MixBeforeNorm) {
    for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
        Matrix x = random(3, 8, 1), delta = random(3, 8, 2), z = random(3, 8, 3), c = random(1, 2, 4);
        Matrix gain = random(1, 8, 5), bias = random(1, 8, 6);
        const Matrix dy = random(3, 8, 7), dresidual = random(3, 8, 8);
        const auto sum = [&] { return weighted_sum_forward(mix_terms(plus(x, delta), z, c), 3); };
        const auto loss = [&] {
            return dot(dy, norm_forward(sum(), gain, bias, kind).y) + dot(dresidual, sum());
        };
        const NormBackward norm = norm_backward(dy, sum(), gain, kind);
        const auto terms =
            weighted_sum_backward(plus(norm.ds, dresidual), mix_terms(plus(x, delta), z, c), 3);
        Matrix dc(1, 2);
        for (int64_t j = 0; j < 2; ++j) dc[j] = terms[static_cast<size_t>(j)].dcoefficient[0];
        expect_gradient(x, terms[0].dsource, loss, "x");
        expect_gradient(delta, terms[0].dsource, loss, "delta");
        expect_gradient(z, terms[1].dsource, loss, "z");
        expect_gradient(c, dc, loss, "coefficients");
        expect_gradient(gain, norm.dgain, loss, "gain");
        expect_gradient(bias, norm.dbias, loss, "bias");
    }
}

TEST(FiniteDifference, Activations) {
    for (Activation activation : {Activation::relu_squared, Activation::gelu_tanh, Activation::gelu_erf}) {
        Matrix x = times(random(5, 7, 1), 2.0);
        const Matrix dy = random(5, 7, 2);
        const auto loss = [&] { return dot(dy, activation_forward(x, activation)); };
        expect_gradient(x, activation_backward(dy, x, activation), loss, "x");
    }
}

// One scalar, one per row and one per head; rows of two sequences, and of the row before.
TEST(FiniteDifference, WeightedSum) {
    constexpr int64_t kRows = 6, kCols = 4, kSequence = 3;
    std::vector<WeightedTerm> terms;
    for (bool shifted : {false, true}) {
        for (const auto& [rows, heads] :
             {std::pair{0, 0}, std::pair{1, 1}, std::pair{6, 1}, std::pair{6, 2}}) {
            const uint64_t seed = 10 * terms.size();
            terms.push_back({random(kRows, kCols, seed + 1), random(rows, heads, seed + 2),
                             rows == 0 ? -0.5 : 1.25, shifted});
        }
    }
    const Matrix dy = random(kRows, kCols, 3);
    const auto gradients = weighted_sum_backward(dy, terms, kSequence);
    const auto loss = [&] { return dot(dy, weighted_sum_forward(terms, kSequence)); };
    for (size_t j = 0; j < terms.size(); ++j) {
        expect_gradient(terms[j].source, gradients[j].dsource, loss, "source");
        expect_gradient(terms[j].coefficient, gradients[j].dcoefficient, loss, "coefficient");
    }
}

TEST(FiniteDifference, NarrowLinear) {
    for (GateActivation activation : {GateActivation::identity, GateActivation::sigmoid,
                                      GateActivation::two_sigmoid, GateActivation::tanh}) {
        for (bool biased : {false, true}) {
            Matrix x = random(5, 4, 1), weight = random(3, 4, 2), bias = biased ? random(1, 3, 3) : Matrix();
            const Matrix dy = random(5, 3, 4);
            const auto backward = narrow_linear_backward(dy, x, weight, bias, 0.75, activation);
            const auto loss = [&] {
                return dot(dy, narrow_linear_forward(x, weight, bias, 0.75, activation));
            };
            expect_gradient(x, backward.dx, loss, "x");
            expect_gradient(weight, backward.dweight, loss, "weight");
            if (biased) expect_gradient(bias, backward.dbias, loss, "bias");
        }
    }
}

// One position per token, and one for each of its two heads.
TEST(FiniteDifference, QkNormRotary) {
    Matrix angle = random(3, 4, 1), cos = angle, sin = angle;
    for (int64_t i = 0; i < angle.size(); ++i) {
        cos[i] = std::cos(angle[i]);
        sin[i] = std::sin(angle[i]);
    }
    for (bool normalize : {false, true}) {
        for (bool rotate : {false, true}) {
            for (const Indices& position : {Indices{0, 2, 1}, Indices{0, 1, 2, 2, 1, 0}}) {
                const RotaryOptions options{2, 8, normalize, rotate};
                Matrix u = random(3, 16, 2);
                const Matrix dout = random(3, 16, 3);
                const auto loss = [&] {
                    return dot(dout, qk_norm_rotary_forward(u, cos, sin, position, options).u);
                };
                expect_gradient(u, qk_norm_rotary_backward(dout, u, cos, sin, position, options), loss, "u");
            }
        }
    }
}

TEST(FiniteDifference, OffsetKeys) {
    for (const int64_t turning : {0, 1, 3, 4}) {
        const KeyOffsetOptions options{2, 8, turning, 3};
        Matrix x = random(6, 16, 1);
        const Matrix dy = random(6, 16, 2);
        const auto loss = [&] { return dot(dy, offset_keys_forward(x, options)); };
        expect_gradient(x, offset_keys_backward(dy, options), loss, "x");
    }
}

// Relative positions: the product of two rotated vectors depends only on the difference of their positions.
TEST(Reference, RotaryIsRelative) {
    const RotaryOptions options{1, 8, true, true};
    Matrix cos(12, 4), sin(12, 4);
    for (int64_t p = 0; p < 12; ++p) {
        for (int64_t i = 0; i < 4; ++i) {
            const double angle = static_cast<double>(p) * std::pow(10.0, -static_cast<double>(i));
            cos(p, i) = std::cos(angle);
            sin(p, i) = std::sin(angle);
        }
    }
    const Matrix q = random(1, 8, 1), k = random(1, 8, 2);
    const auto product = [&](int32_t i, int32_t j) {
        return dot(qk_norm_rotary_forward(q, cos, sin, {i}, options).u,
                   qk_norm_rotary_forward(k, cos, sin, {j}, options).u);
    };
    EXPECT_NEAR(product(4, 1), product(11, 8), 1e-12);
    EXPECT_GT(std::abs(product(4, 1) - product(4, 2)), 1e-3);
}

TEST(FiniteDifference, AttentionWithDocumentsAndWindows) {
    // Two sequences of 6: documents of 4 + 2 and of 1 + 1 + 4 tokens.
    const Indices first_key = {0, 0, 0, 0, 4, 4, 6, 7, 8, 8, 8, 8};
    for (const int64_t value_dim : {4, 3, 6}) {
        for (int64_t window : {0, 1, 3, 6}) {
            const AttentionOptions options{6, 2, 4, window, 0.6f};
            Matrix q = random(12, 8, 1), k = random(12, 8, 2), v = random(12, 2 * value_dim, 3);
            const Matrix dout = random(12, 2 * value_dim, 4);
            const AttentionBackward backward = attention_backward(dout, q, k, v, first_key, options);
            const auto loss = [&] { return dot(dout, attention_forward(q, k, v, first_key, options).o); };
            expect_gradient(q, backward.dq, loss, "q");
            expect_gradient(k, backward.dk, loss, "k");
            expect_gradient(v, backward.dv, loss, "v");
        }
    }
}

TEST(FiniteDifference, AttentionWithQueryPlaces) {
    // Chunks 1 and 2 of 4 of two sequences of 6; and more queries than keys.
    const QueryPositions few = {{2, 3, 4, 5, 2, 3, 4, 5}, 4};
    const QueryPositions many = {{0, 1, 2, 3, 4, 5, 5, 5, 0, 1, 1, 3, 4, 5, 5, 5}, 8};
    for (const QueryPositions& places : {few, many}) {
        Indices first_key;
        for (size_t i = 0; i < places.place.size(); ++i) {
            const int32_t sequence = static_cast<int32_t>(i) / static_cast<int32_t>(places.of_sequence) * 6;
            first_key.push_back(sequence + (places.place[i] >= 3 ? 3 : 0));
        }
        const auto rows = static_cast<int64_t>(places.place.size());
        for (int64_t window : {0, 2}) {
            const AttentionOptions options{6, 2, 4, window, 0.6f};
            Matrix q = random(rows, 8, 1), k = random(12, 8, 2), v = random(12, 10, 3);
            const Matrix dout = random(rows, 10, 4);
            const AttentionBackward backward = attention_backward(dout, q, k, v, first_key, options, places);
            const auto loss = [&] {
                return dot(dout, attention_forward(q, k, v, first_key, options, places).o);
            };
            expect_gradient(q, backward.dq, loss, "q");
            expect_gradient(k, backward.dk, loss, "k");
            expect_gradient(v, backward.dv, loss, "v");
        }
    }
}

// One alpha per head, and one per head and token.
TEST(FiniteDifference, ExcludeOwnValue) {
    for (const int64_t alphas : {1, 4}) {
        Matrix o = random(4, 6, 1), v = random(4, 6, 2), alpha = random(alphas, 2, 3);
        const Matrix dy = random(4, 6, 4);
        const auto loss = [&] { return dot(dy, exclude_own_value_forward(o, v, alpha, 2)); };
        const auto backward = exclude_own_value_backward(dy, o, v, alpha, 2);
        expect_gradient(o, backward.d_o, loss, "o");
        expect_gradient(v, backward.dv, loss, "v");
        expect_gradient(alpha, backward.dalpha, loss, "alpha");
    }
}

// If |v|² is below 1e-8 it is not a divisor: y = o − a·(o·v)·1e8·v, and dv has no third term.
TEST(Reference, ExcludeOwnValueOfTinyVector) {
    Matrix o(1, 2), v(1, 2), alpha(1, 1), dy(1, 2);
    o.values = {3.0, -1.0};
    v.values = {2e-5, 1e-5};
    alpha.values = {0.5};
    dy.values = {1.0, 4.0};
    const double a = std::tanh(0.5);
    const Matrix y = exclude_own_value_forward(o, v, alpha, 1);
    EXPECT_NEAR(y[0], 3.0 - a * 5e-5 * 1e8 * 2e-5, 1e-12);
    EXPECT_NEAR(y[1], -1.0 - a * 5e-5 * 1e8 * 1e-5, 1e-12);
    const auto backward = exclude_own_value_backward(dy, o, v, alpha, 1);
    EXPECT_NEAR(backward.d_o[0], 1.0 - a * 6e-5 * 1e8 * 2e-5, 1e-12);
    EXPECT_NEAR(backward.dv[0], -a * 1e8 * (6e-5 * 3.0 + 5e-5 * 1.0), 1e-7);
    EXPECT_NEAR(backward.dalpha[0], -(1 - a * a) * 5e-5 * 6e-5 * 1e8, 1e-12);
}

TEST(FiniteDifference, CrossEntropy) {
    const Indices targets = {2, -1, 0, 4};
    for (const Softcap& softcap : {Softcap{}, Softcap{1.5f}, Softcap{1.25f, 0.5f, 2.0f}}) {
        Matrix logits = random(4, 8, 1);  // 3 columns of padding
        const auto loss = [&] {
            double sum = 0.0;
            for (double value : cross_entropy_losses(logits, targets, 5, softcap).values) sum += value;
            return 0.25 * sum;
        };
        expect_gradient(logits, cross_entropy_dlogits(logits, targets, 5, softcap, 0.25f), loss, "logits");
    }
}

// The five polynomials in sequence map [1/1000, 0.98] into [0.858, 1.142], and so the singular values. X Xᵀ
// is then the identity up to a matrix of spectral norm 1.142² − 1 < 0.31.
TEST(Reference, PolarExpressSingularValuesAreNearOne) {
    Matrix diagonal(6, 7);
    for (int64_t i = 0; i < 6; ++i) diagonal(i, i) = std::pow(10.0, -0.5 * static_cast<double>(i));
    const Matrix d = polar_express(diagonal);
    for (int64_t r = 0; r < d.rows; ++r) {
        for (int64_t c = 0; c < d.cols; ++c) EXPECT_NEAR(d(r, c), r == c ? 1.0 : 0.0, r == c ? 0.142 : 1e-12);
    }
    for (const auto& [rows, cols] : {std::pair{6, 20}, std::pair{20, 6}, std::pair{8, 9}}) {
        const Matrix y = polar_express(random(rows, cols, 1));
        const Matrix product = rows < cols ? gram(y) : gram(transposed(y));
        for (int64_t r = 0; r < product.rows; ++r) {
            for (int64_t c = 0; c < product.cols; ++c) EXPECT_NEAR(product(r, c), r == c ? 1.0 : 0.0, 0.31);
        }
    }
}

// With v at its mean for a constant update, all lines get equal lengths, and the norm is kept.
TEST(Reference, NormuonEqualisesLines) {
    for (const auto& [rows, cols] : {std::pair{6, 4}, std::pair{4, 6}, std::pair{5, 5}}) {
        const bool by_row = rows >= cols;
        Matrix u(rows, cols), start = random(rows, cols, 1), v(1, std::max(rows, cols));
        for (int64_t c = 0; c < cols; ++c) start(0, c) *= 100.0;
        for (int step = 0; step < 200; ++step) {
            u = start;
            normuon_scale(u, v, 0.5f);
        }
        EXPECT_NEAR(norm(u), norm(start), 1e-9 * norm(start));
        const Matrix lines = by_row ? u : transposed(u), given = by_row ? start : transposed(start);
        for (int64_t i = 0; i < lines.rows; ++i) {
            const Matrix line = row_block(lines, i, 1), before = row_block(given, i, 1);
            const double length = norm(start) / std::sqrt(static_cast<double>(lines.rows));
            EXPECT_NEAR(norm(line), length, 1e-6 * length) << "line " << i;
            EXPECT_NEAR(dot(line, before), norm(line) * norm(before), 1e-9 * norm(line) * norm(before));
        }
    }
}

// One step by hand: rows with mean squares 4 and 16, v = (0, 1): v becomes (2, 8.5).
TEST(Reference, NormuonByHand) {
    Matrix u(2, 1), v(1, 2);
    u.values = {2.0, -4.0};
    v.values = {0.0, 1.0};
    normuon_scale(u, v, 0.5f);
    EXPECT_NEAR(v[0], 2.0, 1e-12);
    EXPECT_NEAR(v[1], 8.5, 1e-12);
    const double first = 2.0 / std::sqrt(2.0), second = -4.0 / std::sqrt(8.5);
    const double factor = std::sqrt(20.0) / std::hypot(first, second);
    EXPECT_NEAR(u[0], factor * first, 1e-7);
    EXPECT_NEAR(u[1], factor * second, 1e-7);
}

// After bias correction the first step of Adam is learning_rate in the direction of the gradient's sign.
TEST(Reference, AdamwFirstStepIsTheSign) {
    Matrix master(1, 2, 1.0), m(1, 2), v(1, 2), grad(1, 2);
    grad[0] = 3.0;
    grad[1] = -1e-3;
    const AdamwNumbers numbers{.learning_rate = 0.5f,
                               .beta1 = 0.9f,
                               .beta2 = 0.99f,
                               .epsilon = 0.0f,
                               .weight_decay = 0.0f,
                               .step = 1};
    adamw_step(master, m, v, grad, 1.0, numbers);
    EXPECT_NEAR(master[0], 0.5, 1e-9);
    EXPECT_NEAR(master[1], 1.5, 1e-9);
}

}  // namespace speedrun::reference::finite_difference_test
