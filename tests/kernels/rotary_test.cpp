#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::rotary_test {

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

// Arguments that forward and backward share.
template <class Arguments>
void set_tables(Harness& h, const Tables& tables, const Indices& position, int64_t positions, Arguments& a) {
    if (!a.options.rotate) return;
    const Tensor all = h.input(position);
    a.cos = h.input(tables.cos, DType::f32);
    a.sin = h.input(tables.sin, DType::f32);
    a.position = positions > 1 ? all.reshaped({all.numel() / positions, positions}) : all;
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

// The inputs of a case.
struct Inputs {
    int64_t width;
    Tables tables;
    Indices position;
    Matrix packed;

    Inputs(const Case& c, DType dtype)
        : width(c.num_heads * c.head_dim),
          tables(tables_for(c.head_dim)),
          position(random_indices(c.rows * c.positions, kPositions, 1)),
          packed(random_matrix(c.rows, 3 * width, 2, dtype, 2.0)) {}
    Matrix part(const Matrix& of, int64_t index) const {
        return reference::column_block(of, index * width, width);
    }
    reference::RotaryForward forward(int64_t index, const RotaryOptions& options) const {
        return reference::qk_norm_rotary_forward(part(packed, index), tables.cos, tables.sin, position,
                                                 options);
    }
    // The call in place, without a value.
    op::QkNormRotaryForward call(Harness& h, const Case& c, const RotaryOptions& options,
                                 const Pair& pair) const {
        op::QkNormRotaryForward a{.q = pair.q, .k = pair.k, .options = options};
        if (options.normalize) a.rstd = h.output(DType::f32, {c.rows, 2 * c.num_heads});
        set_tables(h, tables, position, c.positions, a);
        return a;
    }
};

TEST_P(RotaryTest, Forward) {
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const Inputs in(c, dtype());
        const auto q = in.forward(0, options), k = in.forward(1, options);
        check([&](Harness& h) -> Checks {
            const Pair pair = upload(h, in.packed, in.width, dtype(), c.packed, false);
            const op::QkNormRotaryForward a = in.call(h, c, options, pair);
            h.call(a);
            const Tolerance of_head = reduction(dtype(), c.head_dim);
            Checks checks = {
                {a.q, q.u, "q", of_head}, {a.k, k.u, "k", of_head}, {pair.v, in.part(in.packed, 2), "v"}};
            if (!options.normalize) return checks;
            const Tolerance of_rstd = reduction(DType::f32, c.head_dim);
            checks.push_back({a.rstd.column_slice(0, c.num_heads), q.rstd, "rstd of q", of_rstd});
            checks.push_back({a.rstd.column_slice(c.num_heads, c.num_heads), k.rstd, "rstd of k", of_rstd});
            return checks;
        });
    });
}

// Operands in other memory than the results: the results equal those in place, bitwise, and the operands are unchanged.
TEST_P(RotaryTest, SeparateMemory) {
    for_cases([&](const Case& c, const RotaryOptions& options) {
        if (!options.normalize && !options.rotate) return;
        const Inputs in(c, dtype());
        const auto forward = [&](Harness& h, bool apart) -> Outputs {
            const Pair from = upload(h, in.packed, in.width, dtype(), c.packed, false);
            op::QkNormRotaryForward a = in.call(h, c, options, from);
            if (apart) {
                a.from_q = from.q;
                a.from_k = from.k;
                a.q = h.output(dtype(), {c.rows, in.width});
                a.k = h.output(dtype(), {c.rows, in.width});
            }
            h.call(a);
            return {h.read(a.q), h.read(a.k), options.normalize ? h.read(a.rstd) : Matrix(), h.read(from.q),
                    h.read(from.k)};
        };
        const Outputs own = run([&](Harness& h) { return forward(h, false); });
        const Outputs apart = run([&](Harness& h) { return forward(h, true); });
        for (size_t i : {0, 1, 2}) expect_same_bits(apart[i], own[i], "result of forward");
        expect_same_bits(apart[3], in.part(in.packed, 0), "operand q");
        expect_same_bits(apart[4], in.part(in.packed, 1), "operand k");

        const Matrix upstream = random_matrix(c.rows, 3 * in.width, 3, dtype());
        const auto backward = [&](Harness& h, bool separate) -> Outputs {
            // The gradient of the projection is strided where its operands are.
            const Pair values = upload(h, in.packed, in.width, dtype(), false, true),
                       given = upload(h, upstream, in.width, dtype(), !separate && c.packed, separate);
            op::QkNormRotaryBackward a{
                .dq = given.q, .dk = given.k, .q = values.q, .k = values.k, .options = options};
            if (separate) {
                const Pair to = upload(h, in.packed, in.width, dtype(), c.packed, false);
                a.from_dq = given.q;
                a.from_dk = given.k;
                a.dq = to.q;
                a.dk = to.k;
            }
            if (options.normalize)
                a.rstd = h.input(random_matrix(c.rows, 2 * c.num_heads, 4, DType::f32), DType::f32);
            set_tables(h, in.tables, in.position, c.positions, a);
            h.call(a);
            return {h.read(a.dq), h.read(a.dk)};
        };
        const Outputs own_gradients = run([&](Harness& h) { return backward(h, false); });
        const Outputs gradients = run([&](Harness& h) { return backward(h, true); });
        for (size_t i : {0, 1}) expect_same_bits(gradients[i], own_gradients[i], "gradient");
    });
}

// v is mixed in the same call. q and k have the same results as without it; v is unchanged unless it is the
// output.
TEST_P(RotaryTest, ValueMix) {
    Matrix coefficients(1, 2);
    coefficients.values = {0.75, -1.375};
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const bool in_place = c.rows % 3 == 0;
        const Inputs in(c, dtype());
        const Matrix v = in.part(in.packed, 2), z = random_matrix(c.rows, in.width, 3, dtype());
        const auto forward = [&](Harness& h, bool mixes) -> Outputs {
            const Pair pair = upload(h, in.packed, in.width, dtype(), true, false);
            op::QkNormRotaryForward a = in.call(h, c, options, pair);
            if (mixes)
                a.value = {in_place ? pair.v : h.output(dtype(), {c.rows, in.width}),
                           pair.v,
                           {h.input(z, dtype()), h.input(coefficients, DType::f32, {2})}};
            h.call(a);
            return {h.read(a.q), h.read(a.k), options.normalize ? h.read(a.rstd) : Matrix(),
                    h.read(mixes ? a.value.mixed : pair.v), h.read(pair.v)};
        };
        const Outputs plain = run([&](Harness& h) { return forward(h, false); });
        const Outputs mixed = run([&](Harness& h) { return forward(h, true); });
        expect_same_bits(mixed[0], plain[0], "q");
        expect_same_bits(mixed[1], plain[1], "k");
        expect_same_bits(mixed[2], plain[2], "rstd");
        expect_close(mixed[3],
                     reference::weighted_sum_forward(reference::mix_terms(v, z, coefficients), v.rows),
                     few_operations(dtype()), "mixed");
        if (!in_place) expect_same_bits(mixed[4], v, "v");
    });
}

// Heads of v of another width than those of q: wider, narrower, and not whole vectors of 16 bytes in aligned rows.
TEST_P(RotaryTest, ValueMixOfOtherWidth) {
    Matrix coefficients(1, 2);
    coefficients.values = {0.75, -1.375};
    for (const int64_t value_dim : {64, 16, 12, 6, 2}) {
        for (const bool normalize : {true, false}) {
            SCOPED_TRACE(fmt::format("value_dim={} normalize={}", value_dim, normalize));
            const Case c{9, 4, 32, true};
            const Inputs in(c, dtype());
            const Matrix v = random_matrix(c.rows, c.num_heads * value_dim, 4, dtype()),
                         z = random_matrix(c.rows, c.num_heads * value_dim, 3, dtype());
            const RotaryOptions options{c.num_heads, c.head_dim, normalize, false};
            const auto forward = [&](Harness& h, bool mixes) -> Outputs {
                const Pair pair = upload(h, in.packed, in.width, dtype(), true, false);
                op::QkNormRotaryForward a = in.call(h, c, options, pair);
                if (mixes)
                    a.value = {h.output(v, dtype(), {0, 8}),
                               h.input(v, dtype()),
                               {h.input(z, dtype()), h.input(coefficients, DType::f32, {2})}};
                h.call(a);
                Outputs out{h.read(a.q), h.read(a.k)};
                if (mixes) out.push_back(h.read(a.value.mixed));
                return out;
            };
            const Outputs plain = run([&](Harness& h) { return forward(h, false); });
            const Outputs mixed = run([&](Harness& h) { return forward(h, true); });
            // Unaligned rows of v change the order of the sums of q and k.
            expect_close(mixed[0], plain[0], reduction(dtype(), c.head_dim), "q");
            expect_close(mixed[1], plain[1], reduction(dtype(), c.head_dim), "k");
            expect_close(mixed[2],
                         reference::weighted_sum_forward(reference::mix_terms(v, z, coefficients), v.rows),
                         few_operations(dtype()), "mixed");
        }
    }
}

TEST_P(RotaryTest, Backward) {
    for_cases([&](const Case& c, const RotaryOptions& options) {
        const Inputs in(c, dtype());
        const Matrix upstream = random_matrix(c.rows, 3 * in.width, 3, dtype());
        // Backward receives the outputs of forward, rounded as forward stores them.
        Matrix outputs = in.packed, rstd(c.rows, 2 * c.num_heads);
        Matrix expected[2];
        for (int64_t part : {0, 1}) {
            const auto forward = in.forward(part, options);
            expected[part] =
                reference::qk_norm_rotary_backward(in.part(upstream, part), in.part(in.packed, part),
                                                   in.tables.cos, in.tables.sin, in.position, options);
            for (int64_t t = 0; t < c.rows; ++t) {
                for (int64_t i = 0; i < in.width; ++i) outputs(t, part * in.width + i) = forward.u(t, i);
                for (int64_t head = 0; head < c.num_heads; ++head)
                    rstd(t, part * c.num_heads + head) = forward.rstd(t, head);
            }
        }
        check([&](Harness& h) -> Checks {
            const Pair gradients = upload(h, upstream, in.width, dtype(), c.packed, false);
            const Pair values = upload(h, outputs, in.width, dtype(), c.packed, true);
            op::QkNormRotaryBackward a{
                .dq = gradients.q, .dk = gradients.k, .q = values.q, .k = values.k, .options = options};
            if (options.normalize) a.rstd = h.input(rstd, DType::f32);
            set_tables(h, in.tables, in.position, c.positions, a);
            h.call(a);
            // bf16: the normed vector is available only as rounded by forward.
            const Tolerance tolerance = reduction_of_rounded(dtype(), c.head_dim);
            return {{a.dq, expected[0], "dq", tolerance},
                    {a.dk, expected[1], "dk", tolerance},
                    {gradients.v, in.part(upstream, 2), "dv"}};
        });
    });
}

}  // namespace speedrun::testing::rotary_test
