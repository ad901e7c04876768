// A mix of the heads' maps applied to the values of each head, against float64.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::compose_heads_test {

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

// Columns in the middle of wider rows if strided.
Tensor put(Harness& h, const Matrix& x, DType dtype, bool strided, bool constant) {
    const Margin margin = strided ? Margin{16, 16} : Margin();
    return constant ? h.input(x, dtype, margin) : h.inout(x, dtype, margin);
}
Tensor put_weights(Harness& h, const Matrix& w, bool per_token, bool strided, bool constant) {
    if (per_token) return put(h, w, DType::f32, strided, constant);
    return constant ? h.input(w, DType::f32, {w.cols}) : h.inout(w, DType::f32, {w.cols});
}

// The operands that forward and backward share.
template <class Arguments>
void set_operands(Harness& h, const Case& c, const Inputs& in, DType dtype, Arguments& a) {
    a.q = put(h, in.x.q, dtype, c.strided, true);
    a.k = put(h, in.x.k, dtype, c.strided, true);
    a.v = put(h, in.x.v, dtype, c.strided, true);
    a.first_key = h.input(in.x.first_key);
    a.w1 = put_weights(h, in.x.w1, c.token_w1, c.strided, true);
    a.w2 = put_weights(h, in.x.w2, c.token_w2, c.strided, true);
    a.options = in.options;
}

TEST_P(ComposeHeadsTest, Forward) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c, dtype());
        const Matrix expected = reference::compose_heads_forward(in.x, in.options);
        check([&](Harness& h) -> Checks {
            op::ComposeHeadsForward a{};
            a.c = put(h, Matrix(in.x.q.rows, in.x.q.cols), dtype(), c.strided, false);
            set_operands(h, c, in, dtype(), a);
            h.call(a);
            return {{a.c, expected, "c", reduction(dtype(), c.head_dim + c.keys)}};
        });
    }
}

TEST_P(ComposeHeadsTest, Backward) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c, dtype());
        const auto expected = reference::compose_heads_backward(in.dc, in.x, in.options);
        const int64_t rows = in.dc.rows, width = in.dc.cols;
        const Matrix before[] = {
            random_matrix(rows, width, 7, dtype()), random_matrix(rows, width, 8, dtype()),
            random_matrix(rows, width, 9, dtype()), random_matrix(in.x.w1.rows, c.heads, 10, DType::f32),
            random_matrix(in.x.w2.rows, c.heads, 11, DType::f32)};
        // dS is a difference of values several times its size, each summed over heads.
        const int64_t terms = 4 * c.heads * (c.head_dim + c.keys);
        const Tolerance of_values = reduction(dtype(), terms),
                        of_w2 = reduction(DType::f32, terms * (c.token_w2 ? 1 : rows));
        // With one head the norm leaves only the effect of epsilon in its gradient: a difference of values of
        // order 1.
        Tolerance of_w1 = reduction(DType::f32, terms * (c.token_w1 ? 1 : rows));
        if (c.heads == 1) of_w1.absolute = 1e-6;
        sweep(std::tuple{kBoth}, [&](bool accumulate) {
            check([&](Harness& h) -> Checks {
                op::ComposeHeadsBackward a{};
                a.dq = put(h, before[0], dtype(), c.strided, false);
                a.dk = put(h, before[1], dtype(), c.strided, false);
                a.dv = put(h, before[2], dtype(), c.strided, false);
                a.dw1 = put_weights(h, before[3], c.token_w1, c.strided, false);
                a.dw2 = put_weights(h, before[4], c.token_w2, c.strided, false);
                a.dc = put(h, in.dc, dtype(), c.strided, true);
                set_operands(h, c, in, dtype(), a);
                a.accumulate_q = a.accumulate_k = a.accumulate_v = accumulate;
                a.accumulate_w1 = a.accumulate_w2 = accumulate;
                h.call(a);
                return {{a.dq, added(accumulate, expected.dq, before[0]), "dq", of_values},
                        {a.dk, added(accumulate, expected.dk, before[1]), "dk", of_values},
                        {a.dv, added(accumulate, expected.dv, before[2]), "dv", of_values},
                        {a.dw1, added(accumulate, expected.dw1, before[3]), "dw1", of_w1},
                        {a.dw2, added(accumulate, expected.dw2, before[4]), "dw2", of_w2}};
            });
        });
    }
}

}  // namespace speedrun::testing::compose_heads_test
