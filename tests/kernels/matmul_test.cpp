// Covers: kernels/cpu/column_sum.cpp
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace matmul_test {

SPEEDRUN_OP_TEST(MatmulTest);

struct Sizes {
    int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 48, 96},    {7, 33, 130},  {33, 96, 48},
                            {130, 272, 96}, {96, 48, 130}, {5, 7, 1}};

// If `strided`, each operand is the middle of a wider tensor, with rows that are not adjacent.
constexpr int64_t kMargin = 16;

Tensor middle(const Tensor& wide, bool strided) {
    return strided ? wide.column_slice(kMargin, wide.cols() - 2 * kMargin) : wide;
}

Matrix widened(const Matrix& x, bool strided, DType dtype) {
    if (!strided) return x;
    Matrix wide = random_matrix(x.rows, x.cols + 2 * kMargin, 99, dtype);
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) wide(r, kMargin + c) = x(r, c);
    }
    return wide;
}

enum class Extra { none, bias, accumulate };

using Runner = std::function<Outputs(const std::function<Outputs(Harness&)>&)>;

void check(const Runner& run, Sizes sizes, DType real, DType result, bool transpose_a, bool transpose_b,
           Extra extra, bool strided) {
    SCOPED_TRACE(fmt::format("M={} N={} K={} {}->{} transpose {} {} {} strided={}", sizes.m, sizes.n, sizes.k,
                             name_of(real), name_of(result), transpose_a, transpose_b,
                             extra == Extra::bias         ? "bias"
                             : extra == Extra::accumulate ? "accumulate"
                                                          : "",
                             strided));
    const Matrix a = random_matrix(sizes.m, sizes.k, 1, real), b = random_matrix(sizes.k, sizes.n, 2, real);
    const Matrix bias = random_matrix(1, sizes.n, 3, DType::f32),
                 before = random_matrix(sizes.m, sizes.n, 4, result);
    const Matrix stored_a = widened(transpose_a ? reference::transposed(a) : a, strided, real);
    const Matrix stored_b = widened(transpose_b ? reference::transposed(b) : b, strided, real);

    const Outputs out = run([&](Harness& h) -> Outputs {
        const int64_t margin = strided ? kMargin : 0;
        const Tensor wide = extra == Extra::accumulate ? h.inout(widened(before, strided, result), result)
                                                       : h.output(result, {sizes.m, sizes.n + 2 * margin});
        const Tensor c = middle(wide, strided);
        h.call(op::Matmul{.c = c,
                          .a = middle(h.input(stored_a, real), strided),
                          .b = middle(h.input(stored_b, real), strided),
                          .bias = extra == Extra::bias ? h.input(bias, DType::f32, {sizes.n}) : Tensor(),
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .accumulate = extra == Extra::accumulate});
        if (!strided) return {h.read(c)};
        return {h.read(c), h.read(wide.column_slice(0, kMargin)),
                h.read(wide.column_slice(kMargin + sizes.n, kMargin))};
    });
    Matrix expected = reference::matmul(a, b);
    if (extra == Extra::accumulate) expected = reference::plus(expected, before);
    for (int64_t i = 0; extra == Extra::bias && i < expected.size(); ++i) expected[i] += bias[i % sizes.n];
    // Products of bf16 are exact in f32: only the sum and the result's type round.
    expect_close(out[0], expected, reduction(result, sizes.k), "c");
    if (!strided || extra == Extra::accumulate) return;
    expect_all_nan(out[1], "left of c");
    expect_all_nan(out[2], "right of c");
}

TEST_P(MatmulTest, AllLayouts) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body); };
    for (const Sizes& sizes : kSizes) {
        for (bool transpose_a : {false, true}) {
            for (bool transpose_b : {false, true}) {
                for (Extra extra : {Extra::none, Extra::bias, Extra::accumulate}) {
                    check(runner, sizes, dtype(), dtype(), transpose_a, transpose_b, extra, false);
                    if (dtype() == DType::bf16 && extra != Extra::bias) {
                        check(runner, sizes, DType::bf16, DType::f32, transpose_a, transpose_b, extra, false);
                    }
                }
            }
        }
    }
}

TEST_P(MatmulTest, StridedRows) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body); };
    for (bool transpose_a : {false, true}) {
        for (bool transpose_b : {false, true}) {
            for (Extra extra : {Extra::none, Extra::accumulate}) {
                check(runner, {33, 96, 48}, dtype(), dtype(), transpose_a, transpose_b, extra, true);
                check(runner, {130, 32, 64}, dtype(), DType::f32, transpose_a, transpose_b, extra, true);
            }
        }
    }
}

// A matmul with long K and small M and N. The library splits the sum among threads, so only reruns with the
// same number of threads must give the same bits (kernels/ops/ops.h).
TEST_P(MatmulTest, LongSumIsDeterministic) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body, {2, 2, 2}); };
    check(runner, {48, 48, 4099}, dtype(), DType::f32, true, false, Extra::accumulate, false);
    check(runner, {64, 64, 4096}, dtype(), DType::f32, true, false, Extra::none, false);
    check(runner, {1, 3, 4099}, dtype(), DType::f32, false, true, Extra::none, false);
}

TEST_P(MatmulTest, CountsFlops) {
    run([&](Harness& h) -> Outputs {
        const int64_t before = h.ops().flops();
        h.call(op::Matmul{.c = h.output(dtype(), {7, 33}),
                          .a = h.input(Matrix(7, 48), dtype()),
                          .b = h.input(Matrix(48, 33), dtype())});
        EXPECT_EQ(h.ops().flops() - before, 2 * 7 * 33 * 48);
        return {};
    });
}

TEST_P(MatmulTest, ColumnSum) {
    // Up to two chunks of rows; slightly more rows than a block has warps; the maximum number of chunks.
    for (int64_t rows : {1, 7, 33, 130, 1100, 16500}) {
        for (int64_t cols : {48, 96, 33}) {
            if (rows > 1000 && cols == 96) continue;
            for (bool accumulate : {false, true}) {
                SCOPED_TRACE(fmt::format("T={} C={} accumulate={}", rows, cols, accumulate));
                const Matrix x = random_matrix(rows, cols, 1, dtype()),
                             before = random_matrix(1, cols, 2, DType::f32);
                const Outputs out = run([&](Harness& h) -> Outputs {
                    const Tensor sums =
                        accumulate ? h.inout(before, DType::f32, {cols}) : h.output(DType::f32, {cols});
                    h.call(op::ColumnSum{.out = sums, .x = h.input(x, dtype()), .accumulate = accumulate});
                    return {h.read(sums)};
                });
                Matrix expected = reference::column_sum(x);
                if (accumulate) expected = reference::plus(expected, before);
                expect_close(out[0], expected, reduction(DType::f32, rows), "column_sum");
            }
        }
    }
}

}  // namespace matmul_test
}  // namespace speedrun::testing
