// A mix of the heads' maps applied to the values of each head, against float64.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace compose_heads_test {

SPEEDRUN_OP_TEST(ComposeHeadsTest);

struct Case {
    int64_t sequences, length, heads, head_dim, keys;
    bool strided;             // all real tensors are columns of wider rows
    bool token_w1, token_w2;  // weights per token; otherwise one per head
    int64_t document = 0;     // tokens per document; 0: one document
};
// Fewer tokens than keys, and more; tiles that end in the middle; heads of odd, small and full size; one
// head; one key.
constexpr Case kCases[] = {
    {1, 1, 1, 8, 1, false, false, false},          {2, 37, 3, 16, 8, true, false, false, 11},
    {1, 70, 2, 24, 112, false, true, true},        {3, 20, 2, 7, 5, true, true, false, 6},
    {1, 150, 2, 128, 112, true, false, true, 61},  {1, 40, 4, 4, 1, false, false, false},
    {1, 300, 1, 12, 256, false, true, false, 290}, {2, 33, 5, 36, 40, true, true, true, 7}};

std::string describe(const Case& c) {
    return fmt::format("{}x{} H={} D={} keys={} strided={} per token={},{} documents of {}", c.sequences,
                       c.length, c.heads, c.head_dim, c.keys, c.strided, c.token_w1, c.token_w2, c.document);
}

struct Inputs {
    reference::ComposedHeads x;
    Matrix dc;
    ComposeHeadsOptions options;

    Inputs(const Case& c, DType dtype) {
        const int64_t rows = c.sequences * c.length, width = c.heads * c.head_dim;
        x.q = random_matrix(rows, width, 1, dtype);
        x.k = random_matrix(rows, width, 2, dtype);
        x.v = random_matrix(rows, width, 3, dtype);
        x.w1 = random_matrix(c.token_w1 ? rows : 1, c.heads, 4, DType::f32);
        x.w2 = random_matrix(c.token_w2 ? rows : 1, c.heads, 5, DType::f32);
        dc = random_matrix(rows, width, 6, dtype);
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t place = i % c.length;
            x.first_key.push_back(static_cast<int32_t>(i - (c.document > 0 ? place % c.document : place)));
        }
        // Scores of magnitude 1 to 10, as from normed heads.
        options = {.sequence_length = c.length,
                   .num_heads = c.heads,
                   .head_dim = c.head_dim,
                   .keys = c.keys,
                   .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                   .epsilon = 1e-3f};
    }
};

// Columns in the middle of wider rows if strided; the adjacent columns must stay unchanged.
Tensor put(Harness& h, const Matrix& x, DType dtype, bool strided, bool constant) {
    if (!strided) return constant ? h.input(x, dtype) : h.inout(x, dtype);
    Matrix wide(x.rows, x.cols + 32, 0.5);
    for (int64_t t = 0; t < x.rows; ++t)
        for (int64_t i = 0; i < x.cols; ++i) wide(t, 16 + i) = x(t, i);
    return (constant ? h.input(wide, dtype) : h.inout(wide, dtype)).column_slice(16, x.cols);
}
Tensor put_weights(Harness& h, const Matrix& w, bool per_token, bool strided, bool constant) {
    if (per_token) return put(h, w, DType::f32, strided, constant);
    return constant ? h.input(w, DType::f32, {w.cols}) : h.inout(w, DType::f32, {w.cols});
}

TEST_P(ComposeHeadsTest, Forward) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = put(h, Matrix(in.x.q.rows, in.x.q.cols), dtype(), c.strided, false);
            h.call(op::ComposeHeadsForward{.c = y,
                                           .q = put(h, in.x.q, dtype(), c.strided, true),
                                           .k = put(h, in.x.k, dtype(), c.strided, true),
                                           .v = put(h, in.x.v, dtype(), c.strided, true),
                                           .first_key = h.input(in.x.first_key),
                                           .w1 = put_weights(h, in.x.w1, c.token_w1, c.strided, true),
                                           .w2 = put_weights(h, in.x.w2, c.token_w2, c.strided, true),
                                           .options = in.options});
            return {h.read(y)};
        });
        expect_close(out[0], reference::compose_heads_forward(in.x, in.options),
                     reduction(dtype(), c.head_dim + c.keys), "c");
    }
}

TEST_P(ComposeHeadsTest, Backward) {
    for (const Case& c : kCases) {
        const Inputs in(c, dtype());
        const auto expected = reference::compose_heads_backward(in.dc, in.x, in.options);
        const int64_t rows = in.dc.rows, width = in.dc.cols;
        const Matrix before[] = {
            random_matrix(rows, width, 7, dtype()), random_matrix(rows, width, 8, dtype()),
            random_matrix(rows, width, 9, dtype()), random_matrix(in.x.w1.rows, c.heads, 10, DType::f32),
            random_matrix(in.x.w2.rows, c.heads, 11, DType::f32)};
        const Matrix* const gradients[] = {&expected.dq, &expected.dk, &expected.dv, &expected.dw1,
                                           &expected.dw2};
        for (const bool accumulate : {false, true}) {
            SCOPED_TRACE(describe(c) + (accumulate ? ", adds to what is there" : ""));
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor dq = put(h, before[0], dtype(), c.strided, false),
                             dk = put(h, before[1], dtype(), c.strided, false),
                             dv = put(h, before[2], dtype(), c.strided, false),
                             dw1 = put_weights(h, before[3], c.token_w1, c.strided, false),
                             dw2 = put_weights(h, before[4], c.token_w2, c.strided, false);
                h.call(op::ComposeHeadsBackward{.dq = dq,
                                                .dk = dk,
                                                .dv = dv,
                                                .dw1 = dw1,
                                                .dw2 = dw2,
                                                .dc = put(h, in.dc, dtype(), c.strided, true),
                                                .q = put(h, in.x.q, dtype(), c.strided, true),
                                                .k = put(h, in.x.k, dtype(), c.strided, true),
                                                .v = put(h, in.x.v, dtype(), c.strided, true),
                                                .first_key = h.input(in.x.first_key),
                                                .w1 = put_weights(h, in.x.w1, c.token_w1, c.strided, true),
                                                .w2 = put_weights(h, in.x.w2, c.token_w2, c.strided, true),
                                                .accumulate_q = accumulate,
                                                .accumulate_k = accumulate,
                                                .accumulate_v = accumulate,
                                                .accumulate_w1 = accumulate,
                                                .accumulate_w2 = accumulate,
                                                .options = in.options});
                return {h.read(dq), h.read(dk), h.read(dv), h.read(dw1), h.read(dw2)};
            });
            const char* const names[] = {"dq", "dk", "dv", "dw1", "dw2"};
            for (size_t i = 0; i < 5; ++i) {
                const bool weights = i >= 3, per_token = i == 3 ? c.token_w1 : c.token_w2;
                // dS is a difference of values several times its size, each summed over heads.
                const int64_t terms =
                    4 * c.heads * (c.head_dim + c.keys) * (weights && !per_token ? rows : 1);
                Tolerance tolerance = reduction(weights ? DType::f32 : dtype(), terms);
                // With one head the norm leaves only the effect of epsilon in its gradient: a difference of
                // values of order 1.
                if (i == 3 && c.heads == 1) tolerance.absolute = 1e-6;
                expect_close(out[i], accumulate ? plus(*gradients[i], before[i]) : *gradients[i], tolerance,
                             names[i]);
            }
        }
    }
}

}  // namespace compose_heads_test
}  // namespace speedrun::testing
