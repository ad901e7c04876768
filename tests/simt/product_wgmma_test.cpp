// Matmuls by wgmma with epilogues, in three orders of threads: exact sums, and the bits of an epilogue against the plain matmul followed
// by the operation.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/product_wgmma.cuh"
#include "tests/simt/product_wgmma_problem.h"

namespace speedrun::testing {
namespace {

using Problem = ProductProblem;
using Layout = ProductLayout;

constexpr simt::Order kOrders[] = {simt::Order::forward, simt::Order::reverse, simt::Order::random};

// Two blocks, so that each has several tiles.
simt::Options options_of(simt::Order order) {
    return {.order = order,
            .seed = 5,
            .kernels_wait = true,
            .shared_memory = simt::kSharedMemoryOfH100,
            .multiprocessors = 2};
}

// Runs the problem that `change` completes in three orders, and compares every element of c with the rounded value `expected`.
void expect_results(ProductSizes sizes, Layout layout, const std::function<void(Problem&)>& change,
                    const std::function<float(Problem&, int64_t, int64_t)>& expected) {
    for (const simt::Order order : kOrders) {
        SCOPED_TRACE(name_of(layout) + ", order " + std::to_string(static_cast<int>(order)));
        Problem problem(sizes, layout, options_of(order));
        change(problem);
        ASSERT_TRUE(problem.run());
        for (int64_t row = 0; row < sizes.m; ++row) {
            for (int64_t col = 0; col < sizes.n; ++col)
                ASSERT_EQ(Problem::at(problem.product.c, row, col), float(Bf16(expected(problem, row, col))))
                    << row << ", " << col;
            for (int64_t col = sizes.n; col < problem.product.c.row_stride; ++col)
                ASSERT_TRUE(std::isnan(Problem::at(problem.product.c, row, col))) << row << ", " << col;
        }
    }
}

float rounded_sum(Problem& problem, int64_t row, int64_t col) {
    return Bf16(static_cast<float>(problem.sum(row, col)));
}

// Partial tiles in every dimension; from one step to more steps than stages.
constexpr ProductSizes kSizes[] = {{128, 256, 64}, {200, 264, 80}, {24, 8, 320}, {280, 520, 208}};

TEST(ProductWgmma, SumsOfAllLayouts) {
    for (const Layout layout : {Layout::nt, Layout::nn, Layout::tn, Layout::e4m3}) {
        for (const ProductSizes& sizes : kSizes)
            expect_results(
                sizes, layout, [](Problem&) {}, rounded_sum);
    }
    expect_results(
        {136, 264, 400}, Layout::e4m3, [](Problem&) {}, rounded_sum);
}

TEST(ProductWgmma, AddsBiasAndAddendBeforeRounding) {
    const ProductSizes sizes{136, 264, 80};
    const auto bias = [&](Problem& p) { p.product.bias = p.numbers(sizes.n); };
    const auto addend = [&](Problem& p) { p.product.addend = p.integers(DType::bf16, sizes.m, sizes.n, 3); };
    expect_results(sizes, Layout::nt, bias, rounded_sum);
    for (const Layout layout : {Layout::nt, Layout::nn, Layout::e4m3})
        expect_results(sizes, layout, addend, rounded_sum);
    Tensor before;
    expect_results(  // in place
        sizes, Layout::nn,
        [&](Problem& p) {
            before = p.integers(DType::bf16, sizes.m, sizes.n, 3);
            p.product.c = p.product.addend = p.integers(DType::bf16, sizes.m, sizes.n, 3);
        },
        [&](Problem& p, int64_t row, int64_t col) {
            p.product.addend = before;
            return rounded_sum(p, row, col);
        });
}

// A batch is a matrix per index, with the bits of separate matmuls.
TEST(ProductWgmma, BatchOfMatrices) {
    constexpr int64_t kBatch = 3, kRows = 136, kColumns = 264, kDepth = 64;
    const auto options = options_of(simt::Order::random);
    for (const Layout layout : {Layout::nt, Layout::nn, Layout::tn}) {
        SCOPED_TRACE(name_of(layout));
        Problem p({8, 8, 8}, layout, options);
        WgmmaProduct& x = p.product;
        const bool adds = layout != Layout::tn;
        const auto batch_of = [&](bool transposed, int64_t rows, int64_t cols, unsigned seed) {
            const int64_t r = transposed ? cols : rows, c = transposed ? rows : cols;
            return p.flat(DType::bf16, kBatch * r, c, seed).reshaped({kBatch, r, c});
        };
        x.a = batch_of(x.transpose_a, kRows, kDepth, 5);
        x.b = batch_of(x.transpose_b, kDepth, kColumns, 6);
        x.c = batch_of(false, kRows, kColumns, 7);
        if (adds) x.addend = batch_of(false, kRows, kColumns, 8);
        const WgmmaProduct whole = x;
        ASSERT_TRUE(p.run());
        const Tensor c = p.flat(DType::bf16, kRows, kColumns, 9);
        for (int64_t i = 0; i < kBatch; ++i) {
            const auto one = [&](const Tensor& t) {
                return t.reshaped({t.rows(), t.cols()}).row_slice(i * t.shape[1], t.shape[1]);
            };
            x.a = one(whole.a);
            x.b = one(whole.b);
            if (adds) x.addend = one(whole.addend);
            x.c = c;
            ASSERT_TRUE(p.run());
            EXPECT_EQ(Problem::bits(c), Problem::bits(one(whole.c))) << i;
        }
    }
}

TEST(ProductWgmma, SquaresOfRelu) {
    for (const Layout layout : {Layout::nt, Layout::e4m3}) {
        expect_results(
            {136, 264, 208}, layout, [](Problem& p) { p.product.relu_squared = true; },
            [](Problem& p, int64_t row, int64_t col) {
                const float r = std::max(rounded_sum(p, row, col), 0.0f);
                return r * r;
            });
    }
}

TEST(ProductWgmma, GradientThroughSquares) {
    const ProductSizes sizes{136, 264, 208};
    expect_results(
        sizes, Layout::nn,
        [&](Problem& p) {
            p.product.squares = p.matrix(DType::bf16, sizes.m, sizes.n);
            for (int64_t row = 0; row < sizes.m; ++row)
                for (int64_t col = 0; col < sizes.n; ++col)
                    Problem::set(p.product.squares, row, col, static_cast<float>((row + 3 * col) % 11));
        },
        [](Problem& p, int64_t row, int64_t col) {
            return rounded_sum(p, row, col) * (2.0f * std::sqrt(Problem::at(p.product.squares, row, col)));
        });
}

// Bits of relu², of its FP8 form and of amax against the plain matmul, then the activation, then the quantization. A NaN in a makes a row
// of c, and amax, NaN.
TEST(ProductWgmma, QuantizedSquaresAreThoseOfTheOperations) {
    const ProductSizes sizes{136, 264, 208};
    for (const Layout layout : {Layout::nt, Layout::e4m3}) {
        for (const bool nan : {false, true}) {
            for (const simt::Order order : kOrders) {
                SCOPED_TRACE(name_of(layout) + (nan ? " NaN" : ""));
                Problem fused(sizes, layout, options_of(order)), plain(sizes, layout, options_of(order));
                for (Problem* p : {&fused, &plain})
                    if (nan) Problem::set(p->product.a, 130, 3, NAN);
                ASSERT_TRUE(plain.run());
                const auto ops = make_cuda_ops(plain.device());
                const Tensor y = plain.matrix(DType::bf16, sizes.m, sizes.n),
                             y8 = plain.matrix(DType::e4m3, sizes.m, sizes.n), scale = plain.number(3.0f),
                             amax = plain.number(5.0f);
                ops->activation_forward(
                    {.y = y, .x = plain.product.c, .activation = Activation::relu_squared}, plain.stream());
                ops->quantize({.out = y8, .x = y, .scale = scale, .amax = amax}, plain.stream());
                plain.stream().synchronize();

                fused.product.relu_squared = true;
                fused.product.quantized = fused.matrix(DType::e4m3, sizes.m, sizes.n);
                fused.product.scale = fused.number(order == simt::Order::random ? 7.0f : 3.0f);
                fused.product.constant = order == simt::Order::random ? 3.0f : 0.0f;
                fused.product.amax = fused.number(5.0f);
                ASSERT_TRUE(fused.run());
                EXPECT_EQ(Problem::bits(fused.product.c), Problem::bits(y));
                EXPECT_EQ(Problem::bits(fused.product.quantized), Problem::bits(y8));
                EXPECT_EQ(Problem::at(fused.product.scale, 0, 0), 3.0f);
                const float expected = Problem::at(amax, 0, 0),
                            actual = Problem::at(fused.product.amax, 0, 0);
                EXPECT_TRUE(nan ? std::isnan(expected) && std::isnan(actual)
                                : actual == expected && actual > 5.0f)
                    << actual << ", not " << expected;
            }
        }
    }
}

// An amax that is larger stays, and one that is not requested is not written.
TEST(ProductWgmma, KeepsALargerAmax) {
    for (const bool wanted : {true, false}) {
        Problem p({16, 16, 16}, Layout::nt, options_of(simt::Order::forward));
        p.product.relu_squared = true;
        p.product.quantized = p.matrix(DType::e4m3, 16, 16);
        p.product.scale = p.number(0.0f);  // zeros
        if (wanted) p.product.amax = p.number(1e9f);
        ASSERT_TRUE(p.run());
        if (wanted) {
            EXPECT_EQ(Problem::at(p.product.amax, 0, 0), 1e9f);
        }
        for (int64_t col = 0; col < 16; ++col) EXPECT_EQ(Problem::at(p.product.quantized, 7, col), 0.0f);
    }
}

// Each tile once. The tiles that 132 blocks compute together read few rows of a and columns of b: 16.2 x 8.1 tiles are the optimum.
TEST(ProductWgmma, TilesShareOperands) {
    constexpr int64_t kM = 37 * product_wgmma::kRows - 8, kN = 12 * product_wgmma::kColumns, kBatch = 2;
    const product_wgmma::TileList tiles(kM, kN, kBatch);
    ASSERT_EQ(tiles.count, 37 * 12 * kBatch);
    std::set<std::tuple<int, int, int>> seen;
    for (int begin = 0; begin < tiles.count; begin += 132) {
        std::set<int> rows, columns;
        for (int i = begin; i < std::min(begin + 132, tiles.count); ++i) {
            const product_wgmma::Tile tile = tiles.at(i);
            EXPECT_TRUE(tile.row % product_wgmma::kRows == 0 && tile.row < kM) << i;
            EXPECT_TRUE(tile.col % product_wgmma::kColumns == 0 && tile.col < kN) << i;
            seen.insert({tile.batch, tile.row, tile.col});
            rows.insert(tile.row);
            columns.insert(tile.col);
        }
        if (begin == 0) {
            EXPECT_EQ(rows.size(), 16u);
            EXPECT_EQ(columns.size(), 9u);
        }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), tiles.count);
}

TEST(ProductWgmma, RefusesWhatItDoesNotServe) {
    const auto refused = [](const std::function<void(Problem&)>& change, ProductSizes sizes = {16, 16, 64}) {
        Problem p(sizes, Layout::nt, options_of(simt::Order::forward));
        change(p);
        return !p.run();
    };
    EXPECT_FALSE(refused([](Problem&) {}));
    EXPECT_TRUE(refused([](Problem&) {}, {16, 20, 64})) << "columns";
    EXPECT_TRUE(refused([](Problem&) {}, {16, 16, 60})) << "rows of a and b";
    EXPECT_TRUE(refused([](Problem& p) { p.product.transpose_a = true; })) << "tt";
    EXPECT_TRUE(refused([](Problem& p) { p.product.c = p.matrix(DType::f32, 16, 16); })) << "f32";
    EXPECT_TRUE(refused([](Problem& p) { p.product.a = p.matrix(DType::e5m2, 16, 64); })) << "e5m2";
    EXPECT_TRUE(refused([](Problem& p) { p.product.a = p.matrix(DType::bf16, 16, 72).column_slice(4, 64); }))
        << "an address";
    EXPECT_TRUE(refused([](Problem& p) {
        p.product.squares = p.matrix(DType::bf16, 16, 16);  // no layout nt
    }));
}

}  // namespace
}  // namespace speedrun::testing
