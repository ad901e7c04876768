// Covers: kernels/cuda/ops/attention_wgmma.cu
#include "tests/kernels/attention_support.h"

namespace speedrun::testing::attention_test {

using namespace attention;

SPEEDRUN_OP_TEST_ON(AttentionTest, wgmma_backends());

constexpr Case kCases[] = {
    {1, 7, 1, 16, 0, 0.25f, Documents::whole, false},
    {19, 3, 3, 16, 5, 0.25f, Documents::mixed, true},
    {19, 2, 2, 32, 1, 0.1f, Documents::whole, true},
    {64, 2, 2, 64, 0, 0.125f, Documents::whole, true},
    {64, 1, 1, 128, 64, 0.1f, Documents::mixed, false},
    {200, 2, 1, 64, 0, 0.125f, Documents::mixed, true},
    {200, 1, 2, 128, 5, 0.1f, Documents::whole, true},
    {200, 2, 1, 32, 200, 0.18f, Documents::whole, false},
    {130, 1, 2, 16, 65, 0.25f, Documents::mixed, true},
    {65, 2, 3, 32, 0, 0.18f, Documents::single, true},
    // Windows that end inside a tile: tests the last queries that see a tile of keys.
    {200, 1, 1, 32, 66, 0.18f, Documents::whole, false},
    {200, 1, 1, 64, 66, 0.125f, Documents::whole, false},
    {200, 1, 1, 128, 66, 0.1f, Documents::whole, false},
    // One key less: the last of 32 queries does not see all of the 32 keys that the first one sees.
    {200, 1, 1, 64, 63, 0.125f, Documents::whole, false},
    {330, 1, 1, 128, 0, 0.1f, Documents::mixed, true},
    {330, 1, 1, 64, 34, 0.1f, Documents::mixed, true},
    {200, 1, 1, 48, 70, 2.0f, Documents::mixed, false},  // nearly one-hot: scores up to ±40
    // Sequences that end next to a vector of 16 keys or a tile of 64; head sizes that are not whole vectors.
    {7, 3, 2, 24, 0, 0.2f, Documents::whole, true},
    {16, 2, 2, 16, 0, 0.25f, Documents::mixed, true},
    {31, 2, 1, 64, 0, 0.125f, Documents::whole, false},
    {32, 2, 2, 32, 9, 0.18f, Documents::whole, true},
    {33, 2, 1, 128, 0, 0.1f, Documents::mixed, true},
    {65, 1, 2, 24, 30, 0.2f, Documents::mixed, false},
    {100, 2, 1, 16, 0, 0.25f, Documents::whole, true},
    {100, 1, 2, 64, 17, 0.125f, Documents::mixed, false},
    {256, 1, 1, 32, 0, 0.18f, Documents::whole, true},
    {256, 1, 1, 128, 100, 0.1f, Documents::whole, true},
    {300, 1, 1, 64, 0, 0.125f, Documents::whole, false},  // more queries than one forward work item
    {200, 1, 2, 96, 0, 0.1f, Documents::mixed, true},
    {130, 2, 1, 96, 70, 0.1f, Documents::whole, false},
    // Rows of 512 elements, which are copied before they are read.
    {70, 1, 4, 128, 0, 0.1f, Documents::whole, false},
    // Heads of q and k, and of v and o, of two widths.
    {145, 1, 2, 64, 0, 0.125f, Documents::mixed, true, 128},
    {200, 1, 2, 64, 66, 0.125f, Documents::whole, false, 128},
    {290, 1, 2, 128, 34, 0.1f, Documents::mixed, true, 64},
    {130, 2, 2, 128, 0, 0.1f, Documents::whole, false, 64},
    {130, 1, 3, 96, 70, 0.1f, Documents::mixed, true, 128},
    {97, 2, 2, 24, 30, 0.2f, Documents::mixed, true, 40},
    {67, 2, 3, 40, 0, 0.15f, Documents::whole, false, 24},
    {100, 1, 2, 16, 9, 0.25f, Documents::mixed, true, 5},
    {70, 1, 3, 1, 0, 1.0f, Documents::whole, true, 33},
    {70, 1, 4, 64, 0, 0.125f, Documents::single, false, 128},  // rows of 256 and 512 elements
    // More tiles than a block of wgmma has stages; a last head that ends at the last column.
    {330, 1, 1, 64, 0, 0.125f, Documents::mixed, true, 128},
    {330, 2, 1, 96, 34, 0.1f, Documents::mixed, false, 128},
    {65, 2, 3, 96, 0, 0.1f, Documents::single, true, 128},
};

TEST_P(AttentionTest, Forward) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c, dtype());
        const auto expected = reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c));
        Tolerance of_lse = tolerance_of(c, DType::f32);
        of_lse.absolute = 16 * kF32Roundoff;
        check([&](Harness& h) -> Checks {
            const Operands t = upload(h, in, dtype(), c.packed);
            const Tensor o = h.output(in.v, dtype(), margin_of(c.packed));
            const Tensor lse = h.output(DType::f32, {c.num_heads, in.rows});
            h.call(op::AttentionForward{.o = o,
                                        .lse = lse,
                                        .q = t.q,
                                        .k = t.k,
                                        .v = t.v,
                                        .first_key = h.input(in.first_key),
                                        .options = options_of(c)});
            return {{o, expected.o, "o", tolerance_of(c, dtype())}, {lse, expected.lse, "lse", of_lse}};
        });
    }
}

TEST_P(AttentionTest, Backward) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c, dtype());
        const Matrix dout = random_matrix(in.rows, in.value_width, 4, dtype());
        const auto forward = reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c));
        const auto expected =
            reference::attention_backward(dout, in.q, in.k, in.v, in.first_key, options_of(c));
        check([&](Harness& h) -> Checks {
            const Operands t = upload(h, in, dtype(), c.packed);
            const Tensor packed = h.output(dtype(), {in.rows, 2 * in.width + in.value_width});
            Tensor d[3];
            for (int i = 0; i < 3; ++i) {
                const int64_t width = i < 2 ? in.width : in.value_width;
                d[i] =
                    c.packed ? packed.column_slice(i * in.width, width) : h.output(dtype(), {in.rows, width});
            }
            h.call(op::AttentionBackward{.dq = d[0],
                                         .dk = d[1],
                                         .dv = d[2],
                                         .dout = h.input(dout, dtype()),
                                         .o = h.input(forward.o, dtype()),
                                         .lse = h.input(forward.lse, DType::f32),
                                         .q = t.q,
                                         .k = t.k,
                                         .v = t.v,
                                         .first_key = h.input(in.first_key),
                                         .options = options_of(c)});
            const Tolerance tolerance = tolerance_of_gradient(c, dtype());
            return {{d[0], expected.dq, "dq", tolerance},
                    {d[1], expected.dk, "dk", tolerance},
                    {d[2], expected.dv, "dv", tolerance_of(c, dtype())}};
        });
    }
}

// Invisible tokens must not change any bit: keys before the query's document and window, later keys, and keys
// of other sequences.
TEST_P(AttentionTest, InvisibleTokensAreBitwiseNeutral) {
    const Case c{130, 2, 1, 32, 20, 0.18f, Documents::mixed, false};
    Inputs in(c, dtype());
    const auto attend = [&] {
        return run([&](Harness& h) -> Outputs {
            const Operands t = upload(h, in, dtype(), false);
            const Tensor o = h.output(dtype(), {in.rows, in.width}), lse = h.output(DType::f32, {1, in.rows});
            h.call(op::AttentionForward{.o = o,
                                        .lse = lse,
                                        .q = t.q,
                                        .k = t.k,
                                        .v = t.v,
                                        .first_key = h.input(in.first_key),
                                        .options = options_of(c)});
            return {h.read(o), h.read(lse)};
        });
    };
    const Outputs before = attend();
    const int64_t query = 120;
    for (int64_t j = 0; j < in.rows; ++j) {
        if (reference::visible(query, j, in.first_key, options_of(c))) continue;
        for (int64_t d = 0; d < in.width; ++d) {
            in.k(j, d) = 50.0;
            in.v(j, d) = -50.0;
        }
    }
    const Outputs after = attend();
    expect_same_bits(reference::row_block(after[0], query, 1), reference::row_block(before[0], query, 1),
                     "o");
    EXPECT_EQ(after[1][query], before[1][query]);
}

}  // namespace speedrun::testing::attention_test
