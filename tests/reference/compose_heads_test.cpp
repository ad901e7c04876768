// The mix of heads' maps in float64: gradients against central differences, and the mix itself for known
// cases.
#include "tests/reference/differences.h"

namespace speedrun::reference::compose_heads_test {

// Two sequences of 5, the first of two documents.
ComposedHeads random_heads(int64_t rows_of_w1, int64_t rows_of_w2) {
    return {random(10, 6, 1),         random(10, 6, 2),
            random(10, 6, 3),         {0, 0, 0, 3, 3, 5, 5, 5, 5, 5},
            random(rows_of_w1, 3, 4), random(rows_of_w2, 3, 5)};
}
ComposeHeadsOptions options_with(int64_t keys) {
    return {
        .sequence_length = 5, .num_heads = 3, .head_dim = 2, .keys = keys, .scale = 0.7f, .epsilon = 0.1f};
}

TEST(ComposedHeadsTest, GradientsMatchFiniteDifferences) {
    for (const int64_t keys : {1, 3, 9}) {
        for (const auto& [rows_of_w1, rows_of_w2] : {std::pair{1, 1}, std::pair{10, 1}, std::pair{1, 10}}) {
            ComposedHeads x = random_heads(rows_of_w1, rows_of_w2);
            const ComposeHeadsOptions options = options_with(keys);
            const Matrix dc = random(10, 6, 6);
            const ComposeHeadsBackward backward = compose_heads_backward(dc, x, options);
            const auto loss = [&] { return dot(dc, compose_heads_forward(x, options)); };
            expect_gradient(x.q, backward.dq, loss, "q");
            expect_gradient(x.k, backward.dk, loss, "k");
            expect_gradient(x.v, backward.dv, loss, "v");
            expect_gradient(x.w1, backward.dw1, loss, "w1");
            expect_gradient(x.w2, backward.dw2, loss, "w2");
        }
    }
}

// Heads with equal queries and keys have one map. The mix is that map times the sum of u, and its product
// with v is attention.
TEST(ComposedHeadsTest, EqualMapsReduceToAttention) {
    ComposedHeads x = random_heads(1, 1);
    for (int64_t t = 0; t < 10; ++t) {
        for (int64_t d = 2; d < 6; ++d) {
            x.q(t, d) = x.q(t, d % 2);
            x.k(t, d) = x.k(t, d % 2);
        }
    }
    x.w1.values = {2, 1, -0.5};
    x.w2.values = {1, -3, 0};
    ComposeHeadsOptions options = options_with(3);
    options.epsilon = 0.25f;
    const double sum_of_u = 2.5 / std::sqrt((4 + 1 + 0.25) / 3 + 0.25);
    const Matrix o = attention_forward(
                         x.q, x.k, x.v, x.first_key,
                         {.sequence_length = 5, .num_heads = 3, .head_dim = 2, .window = 3, .scale = 0.7f})
                         .o,
                 c = compose_heads_forward(x, options);
    for (int64_t t = 0; t < 10; ++t)
        for (int64_t d = 0; d < 6; ++d) EXPECT_NEAR(c(t, d), sum_of_u * x.w2[d / 2] * o(t, d), 1e-12);
}

}  // namespace speedrun::reference::compose_heads_test
