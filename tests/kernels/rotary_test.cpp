#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace rotary_test {

SPEEDRUN_OP_TEST(RotaryTest);

constexpr int64_t kPositions = 64;

struct Tables {
    Matrix cos, sin;  // P×(D/2)
};

Tables tables_for(int64_t head_dim) {
    Tables tables{Matrix(kPositions, head_dim / 2), Matrix(kPositions, head_dim / 2)};
    for (int64_t p = 0; p < kPositions; ++p) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
            const double angle =
                static_cast<double>(p) * std::pow(100.0, -2.0 * i / static_cast<double>(head_dim));
            tables.cos(p, i) = std::cos(angle);
            tables.sin(p, i) = std::sin(angle);
        }
    }
    return {rounded(tables.cos, DType::f32), rounded(tables.sin, DType::f32)};
}

struct Case {
    int64_t rows, num_heads, head_dim;
    bool packed;            // q and k are columns of q|k|v
    int64_t positions = 1;  // positions per token
};
constexpr Case kCases[] = {
    {1, 1, 16, false}, {7, 3, 16, true},   {33, 2, 32, true},    {130, 2, 64, false},   {130, 1, 64, true},
    {7, 2, 128, true}, {33, 3, 24, false}, {33, 6, 16, true, 2}, {20, 4, 64, false, 4}, {7, 6, 24, true, 3}};

// Calls body(case, options) for every combination of normalize and rotate.
template <class Body>
void for_cases(Body&& body) {
    for (const Case& c : kCases) {
        for (bool normalize : {false, true}) {
            for (bool rotate : {false, true}) {
                SCOPED_TRACE(fmt::format("T={} H={} D={} packed={} positions={} normalize={} rotate={}",
                                         c.rows, c.num_heads, c.head_dim, c.packed, c.positions, normalize,
                                         rotate));
                RotaryOptions options{c.num_heads, c.head_dim, normalize, rotate};
                if (c.rows % 2 == 0) options.epsilon = 0.5f;  // larger than usual
                body(c, options);
            }
        }
    }
}

struct Optional {
    Tensor cos, sin, position;
};
Optional upload(Harness& h, const Tables& tables, const Indices& position, const RotaryOptions& options,
                int64_t positions) {
    if (!options.rotate) return {};
    const Tensor all = h.input(position);
    return {h.input(tables.cos, DType::f32), h.input(tables.sin, DType::f32),
            positions > 1 ? all.reshaped({all.numel() / positions, positions}) : all};
}

// Tensors that the operation updates in place: q|k|v in one tensor, or q and k in separate ones.
struct Pair {
    Tensor q, k, v;
};
Pair upload(Harness& h, const Matrix& packed, int64_t width, DType dtype, bool as_one, bool constant) {
    const auto put = [&](const Matrix& x) { return constant ? h.input(x, dtype) : h.inout(x, dtype); };
    if (as_one) {
        const Tensor all = put(packed);
        return {all.column_slice(0, width), all.column_slice(width, width),
                all.column_slice(2 * width, width)};
    }
    return {put(reference::column_block(packed, 0, width)),
            put(reference::column_block(packed, width, width)),
            {}};
}

TEST_P(RotaryTest, Forward) {
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const int64_t width = c.num_heads * c.head_dim;
        const Tables tables = tables_for(c.head_dim);
        const Indices position = random_indices(c.rows * c.positions, kPositions, 1);
        const Matrix packed = random_matrix(c.rows, 3 * width, 2, dtype(), 2.0);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Pair pair = upload(h, packed, width, dtype(), c.packed, false);
            const Optional optional = upload(h, tables, position, options, c.positions);
            const Tensor rstd =
                options.normalize ? h.output(DType::f32, {c.rows, 2 * c.num_heads}) : Tensor();
            h.call(op::QkNormRotaryForward{.q = pair.q,
                                           .k = pair.k,
                                           .rstd = rstd,
                                           .cos = optional.cos,
                                           .sin = optional.sin,
                                           .position = optional.position,
                                           .options = options});
            return {h.read(pair.q), h.read(pair.k), options.normalize ? h.read(rstd) : Matrix(),
                    c.packed ? h.read(pair.v) : Matrix()};
        });
        for (int64_t part : {0, 1}) {
            const auto expected =
                reference::qk_norm_rotary_forward(reference::column_block(packed, part * width, width),
                                                  tables.cos, tables.sin, position, options);
            expect_close(out[static_cast<size_t>(part)], expected.u, reduction(dtype(), c.head_dim),
                         part ? "k" : "q");
            if (!options.normalize) continue;
            const Matrix rstd = reference::column_block(out[2], part * c.num_heads, c.num_heads);
            expect_close(rstd, expected.rstd, reduction(DType::f32, c.head_dim), "rstd");
        }
        if (c.packed) expect_same_bits(out[3], reference::column_block(packed, 2 * width, width), "v");
    });
}

// v is mixed in the same call. q and k have the same results as without it; v is unchanged unless it is the
// output.
TEST_P(RotaryTest, ValueMix) {
    Matrix coefficients(1, 2);
    coefficients.values = {0.75, -1.375};
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const bool in_place = c.rows % 3 == 0;
        const int64_t width = c.num_heads * c.head_dim;
        const Tables tables = tables_for(c.head_dim);
        const Indices position = random_indices(c.rows * c.positions, kPositions, 1);
        const Matrix packed = random_matrix(c.rows, 3 * width, 2, dtype(), 2.0),
                     z = random_matrix(c.rows, width, 3, dtype());
        const auto forward = [&](Harness& h, bool mixes) -> Outputs {
            const Pair pair = upload(h, packed, width, dtype(), true, false);
            const Optional optional = upload(h, tables, position, options, c.positions);
            const Tensor rstd =
                options.normalize ? h.output(DType::f32, {c.rows, 2 * c.num_heads}) : Tensor();
            ValueMix value;
            if (mixes) {
                value.mixed = in_place ? pair.v : h.output(dtype(), {c.rows, width});
                value.v = pair.v;
                value.mix = {h.input(z, dtype()), h.input(coefficients, DType::f32, {2})};
            }
            h.call(op::QkNormRotaryForward{.q = pair.q,
                                           .k = pair.k,
                                           .rstd = rstd,
                                           .cos = optional.cos,
                                           .sin = optional.sin,
                                           .position = optional.position,
                                           .value = value,
                                           .options = options});
            return {h.read(pair.q), h.read(pair.k), options.normalize ? h.read(rstd) : Matrix(),
                    h.read(mixes ? value.mixed : pair.v), h.read(pair.v)};
        };
        const Outputs plain = run([&](Harness& h) { return forward(h, false); });
        const Outputs mixed = run([&](Harness& h) { return forward(h, true); });
        expect_same_bits(mixed[0], plain[0], "q");
        expect_same_bits(mixed[1], plain[1], "k");
        expect_same_bits(mixed[2], plain[2], "rstd");
        const Matrix v = reference::column_block(packed, 2 * width, width);
        expect_close(mixed[3],
                     reference::weighted_sum_forward(reference::mix_terms(v, z, coefficients), v.rows),
                     few_operations(dtype()), "mixed");
        if (!in_place) expect_same_bits(mixed[4], v, "v");
    });
}

TEST_P(RotaryTest, Backward) {
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const int64_t width = c.num_heads * c.head_dim;
        const Tables tables = tables_for(c.head_dim);
        const Indices position = random_indices(c.rows * c.positions, kPositions, 1);
        const Matrix packed = random_matrix(c.rows, 3 * width, 2, dtype(), 2.0);
        const Matrix upstream = random_matrix(c.rows, 3 * width, 3, dtype());
        // Backward receives the outputs of forward, rounded as forward stores them.
        Matrix outputs = packed, rstd(c.rows, 2 * c.num_heads), expected = upstream;
        for (int64_t part : {0, 1}) {
            const Matrix u = reference::column_block(packed, part * width, width);
            const auto forward =
                reference::qk_norm_rotary_forward(u, tables.cos, tables.sin, position, options);
            const Matrix gradient =
                reference::qk_norm_rotary_backward(reference::column_block(upstream, part * width, width), u,
                                                   tables.cos, tables.sin, position, options);
            for (int64_t t = 0; t < c.rows; ++t) {
                for (int64_t i = 0; i < width; ++i) {
                    outputs(t, part * width + i) = forward.u(t, i);
                    expected(t, part * width + i) = gradient(t, i);
                }
                for (int64_t head = 0; head < c.num_heads; ++head) {
                    rstd(t, part * c.num_heads + head) = forward.rstd(t, head);
                }
            }
        }
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Pair gradients = upload(h, upstream, width, dtype(), c.packed, false);
            const Pair values = upload(h, outputs, width, dtype(), c.packed, true);
            const Optional optional = upload(h, tables, position, options, c.positions);
            h.call(op::QkNormRotaryBackward{.dq = gradients.q,
                                            .dk = gradients.k,
                                            .q = values.q,
                                            .k = values.k,
                                            .rstd = options.normalize ? h.input(rstd, DType::f32) : Tensor(),
                                            .cos = optional.cos,
                                            .sin = optional.sin,
                                            .position = optional.position,
                                            .options = options});
            return {h.read(gradients.q), h.read(gradients.k), c.packed ? h.read(gradients.v) : Matrix()};
        });
        // bf16: the normed vector is available only as rounded by forward.
        const Tolerance tolerance = reduction_of_rounded(dtype(), c.head_dim);
        expect_close(out[0], reference::column_block(expected, 0, width), tolerance, "dq");
        expect_close(out[1], reference::column_block(expected, width, width), tolerance, "dk");
        if (c.packed) expect_same_bits(out[2], reference::column_block(upstream, 2 * width, width), "dv");
    });
}

}  // namespace rotary_test
}  // namespace speedrun::testing
