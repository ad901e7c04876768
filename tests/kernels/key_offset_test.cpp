// Keys with some dimensions of the previous token, against float64. Values are moved or, in backward, two are added.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::key_offset_test {

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
                       c.options.rotated_pairs, c.strided);
}

int64_t rows_of(const Case& c) {
    return c.sequences * c.options.sequence_length;
}
int64_t width_of(const Case& c) {
    return c.options.num_heads * c.options.head_dim;
}
// The middle third of rows three times as wide, or a separate tensor.
Margin margin_of(const Case& c, bool strided) {
    return strided ? Margin{width_of(c), width_of(c)} : Margin();
}

TEST_P(KeyOffsetTest, ForwardShiftsRows) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Matrix x = random_matrix(rows_of(c), width_of(c), 1, dtype());
        check([&](Harness& h) -> Checks {
            const Tensor y = h.output(x, dtype(), margin_of(c, !c.strided));
            h.call(op::OffsetKeysForward{
                .y = y, .x = h.input(x, dtype(), margin_of(c, c.strided)), .options = c.options});
            return {{y, reference::offset_keys_forward(x, c.options), "y"}};
        });
    }
}

TEST_P(KeyOffsetTest, BackwardShiftsRowsBack) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Matrix dy = random_matrix(rows_of(c), width_of(c), 2, dtype());
        check([&](Harness& h) -> Checks {
            const Tensor dx = h.output(dy, dtype(), margin_of(c, c.strided));
            h.call(op::OffsetKeysBackward{
                .dx = dx, .dy = h.input(dy, dtype(), margin_of(c, !c.strided)), .options = c.options});
            return {{dx, reference::offset_keys_backward(dy, c.options), "dx", few_operations(dtype())}};
        });
    }
}

}  // namespace speedrun::testing::key_offset_test
