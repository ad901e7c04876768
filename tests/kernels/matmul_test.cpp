// Covers: kernels/cpu/column_sum.cpp
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::matmul_test {

SPEEDRUN_OP_TEST(MatmulTest);

struct Sizes {
    int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 48, 96},    {7, 33, 130},  {33, 96, 48},
                            {130, 272, 96}, {96, 48, 130}, {5, 7, 1}};

enum class Extra { none, bias, accumulate };

using Runner = std::function<Outputs(const std::function<Outputs(Harness&)>&)>;

void check_product(const Runner& run, Sizes sizes, DType real, DType result, bool transpose_a,
                   bool transpose_b, Extra extra, bool strided) {
    SCOPED_TRACE(fmt::format("M={} N={} K={} {}->{} transpose {} {} {} strided={}", sizes.m, sizes.n, sizes.k,
                             name_of(real), name_of(result), transpose_a, transpose_b,
                             extra == Extra::bias         ? "bias"
                             : extra == Extra::accumulate ? "accumulate"
                                                          : "",
                             strided));
    const Matrix a = random_matrix(sizes.m, sizes.k, 1, real), b = random_matrix(sizes.k, sizes.n, 2, real);
    const Matrix bias = random_matrix(1, sizes.n, 3, DType::f32),
                 before = random_matrix(sizes.m, sizes.n, 4, result);
    const Matrix stored_a = transpose_a ? reference::transposed(a) : a,
                 stored_b = transpose_b ? reference::transposed(b) : b;
    // If strided, each operand is the middle of a wider tensor, with rows that are not adjacent.
    const Margin margin = strided ? Margin{16, 16} : Margin();
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor c =
            extra == Extra::accumulate ? h.inout(before, result, margin) : h.output(before, result, margin);
        h.call(op::Matmul{.c = c,
                          .a = h.input(stored_a, real, margin),
                          .b = h.input(stored_b, real, margin),
                          .bias = extra == Extra::bias ? h.input(bias, DType::f32, {sizes.n}) : Tensor(),
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .accumulate = extra == Extra::accumulate});
        return {h.read(c)};
    });
    Matrix expected = reference::matmul(a, b);
    if (extra == Extra::accumulate) expected = reference::plus(expected, before);
    for (int64_t i = 0; extra == Extra::bias && i < expected.size(); ++i) expected[i] += bias[i % sizes.n];
    // Products of bf16 are exact in f32: only the sum and the result's type round.
    expect_close(out[0], expected, reduction(result, sizes.k), "c");
}

TEST_P(MatmulTest, AllLayouts) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body); };
    for (const Sizes& sizes : kSizes) {
        sweep(std::tuple{kBoth, kBoth, std::array{Extra::none, Extra::bias, Extra::accumulate}},
              [&](bool transpose_a, bool transpose_b, Extra extra) {
                  check_product(runner, sizes, dtype(), dtype(), transpose_a, transpose_b, extra, false);
                  if (dtype() == DType::bf16 && extra != Extra::bias)
                      check_product(runner, sizes, DType::bf16, DType::f32, transpose_a, transpose_b, extra,
                                    false);
              });
    }
}

TEST_P(MatmulTest, StridedRows) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body); };
    sweep(
        std::tuple{kBoth, kBoth, std::array{Extra::none, Extra::accumulate}},
        [&](bool transpose_a, bool transpose_b, Extra extra) {
            check_product(runner, {33, 96, 48}, dtype(), dtype(), transpose_a, transpose_b, extra, true);
            check_product(runner, {130, 32, 64}, dtype(), DType::f32, transpose_a, transpose_b, extra, true);
        });
}

// A matmul with long K and small M and N. The library splits the sum among threads, so only reruns with the
// same number of threads must give the same bits (kernels/ops/ops.h).
TEST_P(MatmulTest, LongSumIsDeterministic) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body, {2, 2, 2}); };
    check_product(runner, {48, 48, 4099}, dtype(), DType::f32, true, false, Extra::accumulate, false);
    check_product(runner, {64, 64, 4096}, dtype(), DType::f32, true, false, Extra::none, false);
    check_product(runner, {1, 3, 4099}, dtype(), DType::f32, false, true, Extra::none, false);
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

// Up to two chunks of rows; slightly more rows than a block has warps; the maximum number of chunks.
TEST_P(MatmulTest, ColumnSum) {
    sweep(std::tuple{Ints{1, 7, 33, 130, 1100, 16500}, Ints{48, 96, 33}, kBoth},
          [&](int64_t rows, int64_t cols, bool accumulate) {
              if (rows > 1000 && cols == 96) return;
              const Matrix x = random_matrix(rows, cols, 1, dtype()),
                           before = random_matrix(1, cols, 2, DType::f32),
                           expected = added(accumulate, reference::column_sum(x), before);
              check([&](Harness& h) -> Checks {
                  const Tensor sums =
                      accumulate ? h.inout(before, DType::f32, {cols}) : h.output(DType::f32, {cols});
                  h.call(op::ColumnSum{.out = sums, .x = h.input(x, dtype()), .accumulate = accumulate});
                  return {{sums, expected, "column_sum", reduction(DType::f32, rows)}};
              });
          });
}

}  // namespace speedrun::testing::matmul_test
