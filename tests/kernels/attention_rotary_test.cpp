// Attention's backward with that of QK-norm and rotary.
#include "tests/kernels/attention_support.h"

namespace speedrun::testing::attention_rotary_test {

using namespace attention;

SPEEDRUN_OP_TEST_ON(AttentionRotaryTest, wgmma_backends());

struct RotaryCase {
    Case attention;
    bool normalize, rotate;
    int64_t positions = 1;  // per token
};
constexpr RotaryCase kCases[] = {
    {{200, 2, 2, 128, 0, 0.1f, Documents::mixed, true}, true, true},
    {{200, 1, 4, 64, 34, 0.125f, Documents::whole, true}, true, true, 2},
    {{130, 2, 2, 96, 0, 0.1f, Documents::mixed, true}, true, true},
    {{128, 2, 2, 128, 66, 0.1f, Documents::whole, false}, true, false},
    {{70, 1, 4, 128, 0, 0.1f, Documents::single, true}, true, true, 4},
    {{70, 2, 2, 96, 21, 0.1f, Documents::whole, true}, false, true, 2},
    {{70, 1, 2, 64, 0, 0.125f, Documents::mixed, false}, false, true},
    {{40, 2, 3, 64, 0, 0.125f, Documents::mixed, true}, true, false},
    {{33, 2, 2, 32, 0, 0.18f, Documents::mixed, true}, true, true},
};

constexpr int64_t kPositions = 50;  // fewer than tokens: some repeat

// Inputs of the norm of q and of k have different sizes, so that their rstd differ.
struct RotaryInputs : Inputs {
    RotaryOptions options;
    Matrix from_q, from_k, cos, sin, rstd, dout;
    Indices position;
    reference::AttentionForward forward;
    Matrix dq, dk;

    RotaryInputs(const RotaryCase& c, DType dtype)
        : Inputs(c.attention, dtype),
          options{c.attention.num_heads, c.attention.head_dim, c.normalize, c.rotate},
          from_q(random_matrix(rows, width, 5, dtype, 2.0)),
          from_k(random_matrix(rows, width, 6, dtype, 0.5)),
          cos(kPositions, c.attention.head_dim / 2),
          sin(kPositions, c.attention.head_dim / 2),
          rstd(rows, 2 * options.num_heads),
          dout(random_matrix(rows, width, 4, dtype)),
          position(random_indices(rows * c.positions, kPositions, 7)) {
        for (int64_t p = 0; p < kPositions; ++p) {
            for (int64_t i = 0; i < cos.cols; ++i) {
                const double angle = static_cast<double>(p) * std::pow(100.0, -1.0 * i / cos.cols);
                cos(p, i) = std::cos(angle);
                sin(p, i) = std::sin(angle);
            }
        }
        cos = rounded(cos, DType::f32);
        sin = rounded(sin, DType::f32);
        const auto rotated = [&](const Matrix& from, int64_t first) {
            const auto out = reference::qk_norm_rotary_forward(from, cos, sin, position, options);
            for (int64_t t = 0; t < rows; ++t)
                for (int64_t h = 0; h < options.num_heads; ++h) rstd(t, first + h) = out.rstd(t, h);
            return rounded(out.u, dtype);
        };
        q = rotated(from_q, 0);
        k = rotated(from_k, options.num_heads);
        const AttentionOptions how = options_of(c.attention);
        forward = reference::attention_forward(q, k, v, first_key, how);
        const auto gradients = reference::attention_backward(dout, q, k, v, first_key, how);
        dq = reference::qk_norm_rotary_backward(gradients.dq, from_q, cos, sin, position, options);
        dk = reference::qk_norm_rotary_backward(gradients.dk, from_k, cos, sin, position, options);
    }
};

op::AttentionBackward call_of(Harness& h, const RotaryCase& of, const RotaryInputs& in, DType dtype) {
    const Case& c = of.attention;
    const Operands t = upload(h, in, dtype, c.packed);
    const Tensor packed = h.output(dtype, {in.rows, 3 * in.width});
    const auto gradient = [&](int64_t i) {
        return c.packed ? packed.column_slice(i * in.width, in.width) : h.output(dtype, {in.rows, in.width});
    };
    op::AttentionBackward a{.dq = gradient(0),
                            .dk = gradient(1),
                            .dv = gradient(2),
                            .dout = h.input(in.dout, dtype),
                            .o = h.input(in.forward.o, dtype),
                            .lse = h.input(in.forward.lse, DType::f32),
                            .q = t.q,
                            .k = t.k,
                            .v = t.v,
                            .first_key = h.input(in.first_key),
                            .rotary = {.normalize = of.normalize, .rotate = of.rotate},
                            .options = options_of(c)};
    if (of.normalize) a.rotary.rstd = h.input(in.rstd, DType::f32, margin_of(c.packed));
    if (!of.rotate) return a;
    const Tensor position = h.input(in.position);
    a.rotary.position = of.positions > 1 ? position.reshaped({in.rows, of.positions}) : position;
    a.rotary.cos = h.input(in.cos, DType::f32);
    a.rotary.sin = h.input(in.sin, DType::f32);
    return a;
}

// Each error of attention's gradients is multiplied by up to rstd, which is at most 1 / 0.3, and by √2 in a rotation. The rounding
// of the gradient before the norm adds an ulp.
Tolerance tolerance_of(const RotaryCase& c, DType dtype) {
    Tolerance tolerance = tolerance_of_gradient(c.attention, dtype);
    tolerance.absolute *= std::sqrt(2.0) / 0.3;
    tolerance.scaled += 2 * reduction_of_rounded(dtype, c.attention.head_dim).scaled;
    return tolerance;
}

std::string describe(const RotaryCase& c) {
    return fmt::format("{} normalize={} rotate={} positions={}", attention::describe(c.attention),
                       c.normalize, c.rotate, c.positions);
}

TEST_P(AttentionRotaryTest, Backward) {
    for (const RotaryCase& c : kCases) {
        SCOPED_TRACE(describe(c));
        const RotaryInputs in(c, dtype());
        check([&](Harness& h) -> Checks {
            const op::AttentionBackward a = call_of(h, c, in, dtype());
            h.call(a);
            const Tolerance tolerance = tolerance_of(c, dtype());
            return {{a.dq, in.dq, "dq", tolerance}, {a.dk, in.dk, "dk", tolerance}};
        });
    }
}

// The gradients are rounded before the norm, and sums have the order of the pass. The FLOPs are attention's.
TEST_P(AttentionRotaryTest, EqualsTwoOperationsBitwise) {
    for (const RotaryCase& c : kCases) {
        SCOPED_TRACE(describe(c));
        const RotaryInputs in(c, dtype());
        int64_t flops[2] = {};
        const auto gradients = [&](bool apart) {
            return run(
                [&](Harness& h) -> Outputs {
                    op::AttentionBackward a = call_of(h, c, in, dtype());
                    const op::QkNormRotaryBackward rotary = a.rotary_backward();
                    if (apart) a.rotary = {};
                    const int64_t before = h.ops().flops();
                    h.call(a);
                    if (apart) h.call(rotary);
                    flops[apart] = h.ops().flops() - before;
                    return {h.read(a.dq), h.read(a.dk), h.read(a.dv)};
                },
                {1});
        };
        const Outputs together = gradients(false), apart = gradients(true);
        EXPECT_GT(flops[0], 0);
        EXPECT_EQ(flops[0], flops[1]);
        for (size_t i = 0; i < together.size(); ++i)
            expect_same_bits(together[i], apart[i], std::array{"dq", "dk", "dv"}[i]);
    }
}

// Rows with a position outside of the tables are NaN; no other row is.
TEST_P(AttentionRotaryTest, UnknownPositionsGiveNan) {
    const RotaryCase c{{70, 1, 2, 128, 0, 0.1f, Documents::whole, false}, true, true};
    RotaryInputs in(c, dtype());
    in.position[3] = -1;
    in.position[69] = static_cast<int32_t>(kPositions);
    const Outputs all = run([&](Harness& h) -> Outputs {
        const op::AttentionBackward a = call_of(h, c, in, dtype());
        h.call(a);
        return {h.read(a.dq), h.read(a.dk)};
    });
    for (const Matrix& gradient : all)
        for (int64_t t = 0; t < in.rows; ++t)
            for (int64_t i = 0; i < in.width; ++i)
                EXPECT_EQ(std::isnan(gradient(t, i)), t == 3 || t == 69) << t << " " << i;
}

}  // namespace speedrun::testing::attention_rotary_test
