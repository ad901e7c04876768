// Removal of the component of each head's output along the token's own value (XSA), against float64.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::own_value_test {

SPEEDRUN_OP_TEST(OwnValueTest);

struct Case {
    int64_t rows, heads, head_dim;
    bool strided;    // o, v and their gradients are columns of wider rows
    bool per_token;  // one alpha per head and token; otherwise one per head
};
// Heads of one chunk per lane, of a part of one, and of several; row counts below the number of chunks and
// not a multiple of it.
constexpr Case kCases[] = {{1, 1, 8, false, false},   {7, 3, 16, true, false},   {150, 6, 128, true, false},
                           {130, 2, 24, false, true}, {67, 2, 7, true, true},    {9, 1, 520, false, false},
                           {33, 40, 4, false, false}, {200, 2, 12, true, false}, {70, 3, 64, true, true}};

std::string describe(const Case& c) {
    return fmt::format("T={} H={} D={} strided={} per_token={}", c.rows, c.heads, c.head_dim, c.strided,
                       c.per_token);
}

struct Inputs {
    Matrix o, v, dy, alpha;

    // tiny: values with squares below kMinSquare.
    Inputs(const Case& c, DType dtype, bool tiny = false)
        : o(random_matrix(c.rows, c.heads * c.head_dim, 1, dtype)),
          v(random_matrix(c.rows, c.heads * c.head_dim, 2, dtype)),
          dy(random_matrix(c.rows, c.heads * c.head_dim, 3, dtype)),
          alpha(random_matrix(c.per_token ? c.rows : 1, c.heads, 4, DType::f32)) {
        for (double& x : v.values) x *= tiny ? 0x1p-20 : 1;
        for (int64_t d = 0; d < c.head_dim; ++d) v(c.rows / 2, d) = 0;  // must not divide by zero
        if (c.heads > 1) alpha(0, 1) = 0;
    }
};

// o, v, alpha and their gradients: columns in the middle of wider rows if strided.
Tensor put(Harness& h, const Matrix& x, DType dtype, const Case& c, bool constant) {
    const Margin margin = c.strided ? Margin{16, 16} : Margin();
    return constant ? h.input(x, dtype, margin) : h.inout(x, dtype, margin);
}

Tensor put_alpha(Harness& h, const Matrix& alpha, const Case& c, bool constant) {
    if (c.per_token) return put(h, alpha, DType::f32, c, constant);
    return constant ? h.input(alpha, DType::f32, {c.heads}) : h.inout(alpha, DType::f32, {c.heads});
}

// Calls body(case, inputs) for usual values, and for tiny ones where they matter.
template <class Body>
void for_cases(DType dtype, Body&& body) {
    for (const Case& c : kCases) {
        for (const bool tiny : {false, true}) {
            SCOPED_TRACE(describe(c) + (tiny ? ", tiny" : ""));
            if (!tiny || c.rows < 100) body(c, Inputs(c, dtype, tiny));
        }
    }
}

TEST_P(OwnValueTest, Forward) {
    for_cases(dtype(), [&](const Case& c, const Inputs& in) {
        sweep(std::tuple{kBoth}, [&](bool in_place) {
            check([&](Harness& h) -> Checks {
                const Tensor o = put(h, in.o, dtype(), c, !in_place);
                const Tensor y = in_place ? o : h.output(dtype(), {c.rows, in.o.cols});
                h.call(op::ExcludeOwnValueForward{.y = y,
                                                  .o = o,
                                                  .v = put(h, in.v, dtype(), c, true),
                                                  .alpha = put_alpha(h, in.alpha, c, true)});
                return {{y, reference::exclude_own_value_forward(in.o, in.v, in.alpha, c.heads), "y",
                         reduction(dtype(), c.head_dim)}};
            });
        });
    });
}

// The one that accumulates writes d_o in place of dy.
TEST_P(OwnValueTest, Backward) {
    for_cases(dtype(), [&](const Case& c, const Inputs& in) {
        const auto expected = reference::exclude_own_value_backward(in.dy, in.o, in.v, in.alpha, c.heads);
        const Matrix dv_before = random_matrix(c.rows, in.o.cols, 5, dtype()),
                     dalpha_before = random_matrix(in.alpha.rows, c.heads, 6, DType::f32);
        sweep(std::tuple{kBoth}, [&](bool accumulate) {
            check([&](Harness& h) -> Checks {
                const Tensor dy = put(h, in.dy, dtype(), c, !accumulate),
                             d_o = accumulate ? dy : h.output(dtype(), {c.rows, in.o.cols}),
                             dv = put(h, dv_before, dtype(), c, false),
                             dalpha = put_alpha(h, dalpha_before, c, false);
                h.call(op::ExcludeOwnValueBackward{.d_o = d_o,
                                                   .dv = dv,
                                                   .dalpha = dalpha,
                                                   .dy = dy,
                                                   .o = put(h, in.o, dtype(), c, true),
                                                   .v = put(h, in.v, dtype(), c, true),
                                                   .alpha = put_alpha(h, in.alpha, c, true),
                                                   .accumulate_v = accumulate,
                                                   .accumulate_alpha = accumulate});
                const Tolerance of_head = reduction(dtype(), c.head_dim);
                return {{d_o, expected.d_o, "d_o", of_head},
                        {dv, added(accumulate, expected.dv, dv_before), "dv", of_head},
                        {dalpha, added(accumulate, expected.dalpha, dalpha_before), "dalpha",
                         reduction(DType::f32, c.head_dim * (c.per_token ? 1 : c.rows))}};
            });
        });
    });
}

}  // namespace speedrun::testing::own_value_test
