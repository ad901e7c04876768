// The CPU's own bf16 products at sizes that reach each of their loops: several pieces of K, ranges of
// columns, groups of packed rows. The cases of matmul_test.cpp, which all backends run, are too small for
// that.
#include "kernels/cpu/bf16_product.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace speedrun::testing {
namespace {

struct Case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, c_is_f32;
    float beta;
    bool bias, base, symmetric;
};

std::vector<Bf16> random_values(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<Bf16> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(Bf16(uniform(random)));
    return values;
}

// c of one product by this many threads, as float. Rows of c are 3 wider than they need to be; nothing may be
// written there.
std::vector<float> result_of(const Case& x, const std::vector<Bf16>& a, const std::vector<Bf16>& b,
                             const std::vector<float>& bias, const std::vector<Bf16>& before, int threads) {
    const int64_t stride = x.n + 3;
    std::vector<float> wide(static_cast<size_t>(x.m * stride), 7.0f);
    std::vector<Bf16> narrow(wide.size(), Bf16(7.0f)), base(wide.size(), Bf16(0.0f));
    for (int64_t i = 0; i < x.m; ++i) {
        for (int64_t j = 0; j < x.n; ++j) {
            const Bf16 value = before[static_cast<size_t>(i * x.n + j)];
            (x.base ? base : narrow)[static_cast<size_t>(i * stride + j)] = value;
            wide[static_cast<size_t>(i * stride + j)] = static_cast<float>(value);
        }
    }
    void* c = x.c_is_f32 ? static_cast<void*>(wide.data()) : static_cast<void*>(narrow.data());
    const cpu::Bf16Product product{
        .m = x.m,
        .n = x.n,
        .k = x.k,
        .a = a.data(),
        .a_stride = x.transpose_a ? x.m : x.k,
        .transpose_a = x.transpose_a,
        .b = x.symmetric ? a.data() : b.data(),
        .b_stride = x.symmetric ? (x.transpose_a ? x.m : x.k) : (x.transpose_b ? x.k : x.n),
        .transpose_b = x.transpose_b,
        .c = c,
        .c_stride = stride,
        .c_is_f32 = x.c_is_f32,
        .beta = x.beta,
        .bias = x.bias ? bias.data() : nullptr,
        .base = x.base ? base.data() : nullptr,
        .symmetric = x.symmetric};
    cpu::Team team(threads);
    cpu::set_current_team(&team);
    const int64_t bytes = cpu::bf16_product_workspace(product);
    std::vector<char> memory(static_cast<size_t>(bytes) + 64,
                             static_cast<char>(0xff));  // NaN: nothing is taken from there
    auto* workspace = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    cpu::run_bf16_product(product, workspace);
    cpu::set_current_team(nullptr);
    std::vector<float> out;
    for (int64_t i = 0; i < x.m * stride; ++i) {
        const float value =
            x.c_is_f32 ? wide[static_cast<size_t>(i)] : static_cast<float>(narrow[static_cast<size_t>(i)]);
        if (i % stride < x.n) {
            out.push_back(value);
        } else {
            EXPECT_EQ(value, 7.0f) << "beside row " << i / stride;
        }
    }
    return out;
}

void check(const Case& x) {
    SCOPED_TRACE(fmt::format("{}x{}x{} {}{} f32 {} beta {} bias {} base {} symmetric {}", x.m, x.n, x.k,
                             x.transpose_a ? 't' : 'n', x.transpose_b ? 't' : 'n', x.c_is_f32, x.beta, x.bias,
                             x.base, x.symmetric));
    const std::vector<Bf16> a = random_values(x.m * x.k, 1), b = random_values(x.k * x.n, 2),
                            before = random_values(x.m * x.n, 3);
    std::vector<float> bias;
    for (int64_t j = 0; j < x.n; ++j) bias.push_back(0.01f * static_cast<float>(j % 100));
    const std::vector<float> out = result_of(x, a, b, bias, before, 1),
                             again = result_of(x, a, b, bias, before, 3);
    EXPECT_EQ(std::memcmp(out.data(), again.data(), out.size() * sizeof(float)), 0)
        << "1 and 3 threads differ";

    const auto left = [&](int64_t i, int64_t k) {
        return static_cast<double>(
            static_cast<float>(a[static_cast<size_t>(x.transpose_a ? k * x.m + i : i * x.k + k)]));
    };
    const auto right = [&](int64_t k, int64_t j) {
        if (x.symmetric) return left(j, k);
        return static_cast<double>(
            static_cast<float>(b[static_cast<size_t>(x.transpose_b ? j * x.k + k : k * x.n + j)]));
    };
    // Products of bf16 are exact in f32; a sum of k terms below 1 errs by less than k·2^-24 of its own size
    // √k, and a bf16 result is rounded to 2^-9 of itself besides.
    const double size = std::sqrt(static_cast<double>(x.k));
    const double absolute = static_cast<double>(x.k) * size * 6e-8, relative = x.c_is_f32 ? 0 : 1.0 / 256;
    // Every element of small results, and of large ones as many, spread over all tiles.
    const int64_t step = std::max<int64_t>(1, x.m * x.n / 20000) | 1;
    for (int64_t e = 0; e < x.m * x.n; e += step) {
        const int64_t i = e / x.n, j = e % x.n;
        double expected = 0;
        for (int64_t k = 0; k < x.k; ++k) expected += left(i, k) * right(k, j);
        expected += x.beta * static_cast<float>(before[static_cast<size_t>(e)]);
        if (x.bias) expected += bias[static_cast<size_t>(j)];
        ASSERT_NEAR(out[static_cast<size_t>(e)], expected, absolute + relative * std::abs(expected))
            << i << ", " << j;
    }
    for (int64_t i = 0; x.symmetric && i < x.m; ++i) {
        for (int64_t j = 0; j < i; ++j) {
            ASSERT_EQ(out[static_cast<size_t>(i * x.n + j)], out[static_cast<size_t>(j * x.n + i)])
                << i << ", " << j;
        }
    }
}

class Bf16ProductTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!cpu::has_bf16_product()) GTEST_SKIP() << "this processor or build has no bf16 products";
    }
};

TEST_F(Bf16ProductTest, EveryLoop) {
    for (const bool f32 : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
            check({13, 1100, 34, false, true, f32, beta, false, false, false});  // two ranges of columns
            check({7, 66, 4200, false, false, f32, beta, false, false,
                   false});  // two pieces of K, rows in place
            check(
                {20, 70, 2100, true, false, f32, beta, false, false, false});   // three pieces of K, a packed
            check({2100, 65, 30, true, true, f32, beta, false, false, false});  // two groups of packed rows
            check({50, 130, 1027, false, true, f32, beta, false, false,
                   false});  // an odd K: a packed by its rows
            check({700, 64, 256, false, false, f32, beta, false, false, false});  // blocks of whole tiles
        }
    }
}

TEST_F(Bf16ProductTest, BiasAndBase) {
    for (const int64_t k : {64, 4200}) {
        check({33, 100, k, false, true, false, 0.0f, true, false, false});
        check({33, 100, k, false, true, true, 0.0f, true, false, false});
        check({33, 192, k, false, false, false, 8.125f, false, true, false});
    }
}

TEST_F(Bf16ProductTest, SymmetricResultsAreMirrored) {
    for (const int64_t side : {5, 64, 70, 200, 1100}) {
        check({side, side, 48, false, true, false, 0.0f, false, false, true});
        check({side, side, 40, true, false, false, 0.0f, false, false, true});
    }
    check({200, 200, 4200, false, true, false, 0.0f, false, false, true});
    check({200, 200, 1100, true, false, false, 0.0f, false, false, true});
}

}  // namespace
}  // namespace speedrun::testing
