// Keys with some dimensions of the previous token, against float64. Values are moved or, in backward, two are added.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace key_offset_test {

SPEEDRUN_OP_TEST(KeyOffsetTest);

struct Case {
    int64_t sequences;
    KeyOffsetOptions options;
    bool strided;  // keys are columns of q|k|v
};
// Shifted ranges of whole vectors, and ranges that vectors would straddle; sequences of one token.
constexpr Case kCases[] = {{1, {6, 128, 32, 50}, true}, {3, {2, 64, 16, 7}, false}, {2, {3, 24, 5, 11}, true},
                           {5, {1, 16, 8, 1}, true},    {2, {2, 16, 0, 6}, false},  {2, {2, 32, 16, 6}, true},
                           {1, {4, 10, 2, 33}, false}};

std::string describe(const Case& c) {
    return fmt::format("sequences={} S={} H={} D={} turning={} strided={}", c.sequences,
                       c.options.sequence_length, c.options.num_heads, c.options.head_dim,
                       c.options.turning_pairs, c.strided);
}

// The middle third of rows three times as wide, or a separate tensor.
Tensor put(Harness& h, const Matrix& x, DType dtype, bool strided) {
    if (!strided) return h.input(x, dtype);
    Matrix wide(x.rows, 3 * x.cols, 0.5);
    for (int64_t t = 0; t < x.rows; ++t)
        for (int64_t i = 0; i < x.cols; ++i) wide(t, x.cols + i) = x(t, i);
    return h.input(wide, dtype).column_slice(x.cols, x.cols);
}

Tensor result(Harness& h, const Matrix& like, DType dtype, bool strided) {
    if (!strided) return h.output(dtype, {like.rows, like.cols});
    return h.output(dtype, {like.rows, 3 * like.cols}).column_slice(like.cols, like.cols);
}

TEST_P(KeyOffsetTest, ForwardMovesRows) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Matrix x = random_matrix(c.sequences * c.options.sequence_length,
                                       c.options.num_heads * c.options.head_dim, 1, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = result(h, x, dtype(), !c.strided);
            h.call(op::OffsetKeysForward{.y = y, .x = put(h, x, dtype(), c.strided), .options = c.options});
            return {h.read(y)};
        });
        expect_same_bits(out[0], reference::offset_keys_forward(x, c.options), "y");
    }
}

TEST_P(KeyOffsetTest, BackwardMovesThemBack) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Matrix dy = random_matrix(c.sequences * c.options.sequence_length,
                                        c.options.num_heads * c.options.head_dim, 2, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor dx = result(h, dy, dtype(), c.strided);
            h.call(op::OffsetKeysBackward{
                .dx = dx, .dy = put(h, dy, dtype(), !c.strided), .options = c.options});
            return {h.read(dx)};
        });
        expect_close(out[0], reference::offset_keys_backward(dy, c.options), few_operations(dtype()), "dx");
    }
}

}  // namespace key_offset_test
}  // namespace speedrun::testing
