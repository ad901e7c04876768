// CPU matmuls at sizes that reach each of their loops: several pieces of K, ranges of columns, groups of
// packed rows; at every instruction level. The cases of matmul_test.cpp, which all backends run, are too
// small.
#include "kernels/cpu/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/level.h"
#include "kernels/cpu/team.h"
#include "tests/sanitized.h"

namespace speedrun::testing {
namespace {

struct Case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, c_is_f32;
    float beta;
    bool bias, base, symmetric;
    int64_t b_gap = 0;  // elements between rows of b
};

// Values exact in bf16, as f32.
std::vector<float> random_values(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(Bf16(uniform(random))));
    return values;
}

// An array of f32 or bf16.
class Array {
  public:
    Array(DType dtype, int64_t count, float value)
        : dtype_(dtype), f32_(static_cast<size_t>(count), value), bf16_(f32_.size(), Bf16(value)) {}
    Array(DType dtype, const std::vector<float>& values)
        : Array(dtype, static_cast<int64_t>(values.size()), 0.0f) {
        for (size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
    }
    void set(int64_t i, float value) {
        f32_[static_cast<size_t>(i)] = value;
        bf16_[static_cast<size_t>(i)] = Bf16(value);
    }
    float get(int64_t i) const {
        const auto at = static_cast<size_t>(i);
        return dtype_ == DType::f32 ? f32_[at] : static_cast<float>(bf16_[at]);
    }
    void* data() {
        return dtype_ == DType::f32 ? static_cast<void*>(f32_.data()) : static_cast<void*>(bf16_.data());
    }

  private:
    DType dtype_;
    std::vector<float> f32_;
    std::vector<Bf16> bf16_;
};

// Result c of one matmul with `threads` threads. Rows of c are 3 elements wider than needed; the excess must
// not be written.
std::vector<float> result_of(Isa isa, DType input_dtype, const Case& x, const std::vector<float>& left,
                             const std::vector<float>& right, const std::vector<float>& bias,
                             const std::vector<float>& before, int threads) {
    const int64_t stride = x.n + 3;
    const DType result = x.c_is_f32 ? DType::f32 : input_dtype;
    const int64_t b_width = x.transpose_b ? x.k : x.n, b_rows = x.transpose_b ? x.n : x.k,
                  b_stride = b_width + x.b_gap;
    Array a(input_dtype, left), b(input_dtype, b_rows * b_stride, NAN), c(result, x.m * stride, 7.0f),
        base(result, x.m * stride, 0.0f);
    for (int64_t e = 0; e < b_rows * b_width; ++e)
        b.set(e / b_width * b_stride + e % b_width, right[static_cast<size_t>(e)]);
    for (int64_t i = 0; i < x.m; ++i) {
        for (int64_t j = 0; j < x.n; ++j)
            (x.base ? base : c).set(i * stride + j, before[static_cast<size_t>(i * x.n + j)]);
    }
    const cpu::Gemm product{.m = x.m,
                            .n = x.n,
                            .k = x.k,
                            .input_dtype = input_dtype,
                            .a = a.data(),
                            .a_stride = x.transpose_a ? x.m : x.k,
                            .transpose_a = x.transpose_a,
                            .b = x.symmetric ? a.data() : b.data(),
                            .b_stride = x.symmetric ? (x.transpose_a ? x.m : x.k) : b_stride,
                            .transpose_b = x.transpose_b,
                            .c = c.data(),
                            .c_stride = stride,
                            .result = result,
                            .beta = x.beta,
                            .bias = x.bias ? bias.data() : nullptr,
                            .base = x.base ? base.data() : nullptr,
                            .amx = isa == Isa::amx_bf16,
                            .symmetric = x.symmetric};
    cpu::Team team(threads);
    cpu::set_current_team(&team);
    const int64_t bytes = cpu_level(isa).product_workspace(product);
    std::vector<char> memory(static_cast<size_t>(bytes) + 64,
                             static_cast<char>(0xff));  // NaN: must not be read
    auto* workspace = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    cpu_level(isa).run_product(product, workspace);
    cpu::set_current_team(nullptr);
    std::vector<float> out;
    for (int64_t i = 0; i < x.m * stride; ++i) {
        if (i % stride < x.n) {
            out.push_back(c.get(i));
        } else {
            EXPECT_EQ(c.get(i), 7.0f) << "beside row " << i / stride;
        }
    }
    return out;
}

void check(Isa isa, DType input_dtype, const Case& x) {
    SCOPED_TRACE(fmt::format("{}x{}x{} {}{} f32 {} beta {} bias {} base {} symmetric {}", x.m, x.n, x.k,
                             x.transpose_a ? 't' : 'n', x.transpose_b ? 't' : 'n', x.c_is_f32, x.beta, x.bias,
                             x.base, x.symmetric));
    const std::vector<float> a = random_values(x.m * x.k, 1), b = random_values(x.k * x.n, 2),
                             before = random_values(x.m * x.n, 3);
    std::vector<float> bias;
    for (int64_t j = 0; j < x.n; ++j) bias.push_back(0.01f * static_cast<float>(j % 100));
    const std::vector<float> out = result_of(isa, input_dtype, x, a, b, bias, before, 1),
                             again = result_of(isa, input_dtype, x, a, b, bias, before, 3);
    EXPECT_EQ(std::memcmp(out.data(), again.data(), out.size() * sizeof(float)), 0)
        << "1 and 3 threads differ";
    if (input_dtype == DType::f32) {
        const std::vector<float> lowest =
            result_of(usable_isas().front(), input_dtype, x, a, b, bias, before, 2);
        EXPECT_EQ(std::memcmp(out.data(), lowest.data(), out.size() * sizeof(float)), 0)
            << "another sum than at the lowest level";
    }

    const auto left = [&](int64_t i, int64_t k) {
        return static_cast<double>(a[static_cast<size_t>(x.transpose_a ? k * x.m + i : i * x.k + k)]);
    };
    const auto right = [&](int64_t k, int64_t j) {
        if (x.symmetric) return left(j, k);
        return static_cast<double>(b[static_cast<size_t>(x.transpose_b ? j * x.k + k : k * x.n + j)]);
    };
    // Products of bf16 are exact in f32. A sum of k terms below 1 errs by less than k·2^-24 of its own size
    // √k. A bf16 result also rounds by 2^-9 relative.
    const double size = std::sqrt(static_cast<double>(x.k));
    const double absolute = static_cast<double>(x.k) * size * 6e-8,
                 relative = x.c_is_f32 || input_dtype == DType::f32 ? 0 : 1.0 / 256;
    // Checks every element of small matmuls. Of large ones it checks the same number of terms, spread over
    // all tiles.
    const int64_t step = (x.m * x.n * x.k / (kSanitized ? 2'000'000 : 20'000'000)) | 1;
    for (int64_t e = 0; e < x.m * x.n; e += step) {
        const int64_t i = e / x.n, j = e % x.n;
        double expected = 0;
        for (int64_t k = 0; k < x.k; ++k) expected += left(i, k) * right(k, j);
        expected += x.beta * before[static_cast<size_t>(e)];
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

class GemmTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
  protected:
    void check(const Case& x) const { testing::check(std::get<0>(GetParam()), std::get<1>(GetParam()), x); }
};

INSTANTIATE_TEST_SUITE_P(Levels, GemmTest,
                         ::testing::Combine(::testing::ValuesIn(usable_isas()),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                             return fmt::format("{}_{}", name_of(std::get<0>(info.param)),
                                                name_of(std::get<1>(info.param)));
                         });

TEST_P(GemmTest, EveryLoop) {
    for (const bool f32 : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
            check({13, 1100, 34, false, true, f32, beta, false, false, false});  // two ranges of columns
            check({7, 66, 4200, false, false, f32, beta, false, false,
                   false});  // two pieces of K, rows in place
            check(
                {20, 70, 2100, true, false, f32, beta, false, false, false});   // three pieces of K, a packed
            check({2100, 65, 30, true, true, f32, beta, false, false, false});  // two groups of packed rows
            check({50, 130, 1027, false, true, f32, beta, false, false,
                   false});  // an odd K: a is packed by its rows
            check({700, 64, 256, false, false, f32, beta, false, false, false});  // blocks of whole tiles
        }
    }
}

// K of whole AMX tiles (level amx_bf16), with every kind of last tile.
TEST_P(GemmTest, WholeAmxTilesOfK) {
    for (const bool transposed : {false, true}) {
        for (const int64_t m : {1, 15, 17, 32, 47, 97}) {
            for (const int64_t n : {3, 32, 40, 66})
                check({m, n, 96, transposed, m % 2 == 1, m > 30, m > 16 ? 1.0f : 0.0f, false, false, false});
        }
        check({70, 1100, 32, transposed, true, false, 0.0f, false, false, false});
        check({33, 20, 8224, transposed, false, true, 0.0f, false, false, false});  // several pieces of K
        check({33, 20, 8224, transposed, false, false, 0.0f, true, false, false});
        check({2100, 64, 64, transposed, false, false, 1.0f, false, false, false});
        check({70, 70, 4256, transposed, !transposed, false, 0.0f, false, false, true});
    }
}

// From K = 4,096 on, small results are the sum of two parts. 4,101: the second part has an odd length, the
// first not.
TEST_P(GemmTest, SplitK) {
    for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
            for (const int64_t k : {4096, 4101, 8192})
                check({33, 70, k, transpose_a, transpose_b, true, 1.0f, false, false, false});
        }
        check({17, 330, 4128, transpose_a, false, false, 0.5f, false, false, false});
        check({330, 17, 4200, transpose_a, false, false, 1.0f, false, true, false});
    }
    if (kSanitized) return;
    check({5, 1100, 4128, false, false, true, 0.0f, true, false, false});  // two ranges of columns
    check({1030, 1030, 4128, false, true, false, 1.0f, false, false,
           false});  // too large for parts: pieces of K
}

// Short matmuls of whole panels, which read b in place, and cases just beyond each bound.
TEST_P(GemmTest, UnpackedPanels) {
    for (const bool transpose_a : {false, true}) {
        for (const int64_t gap : {0, 3, 320}) {  // the last: row stride a multiple of 512
            check({50, 192, 767, transpose_a, false, false, 0.0f, false, false, false, gap});
            check({50, 192, 769, transpose_a, false, false, 0.0f, false, false, false, gap});
        }
        check({13, 384, 100, transpose_a, false, true, 1.0f, true, false, false});
        check({13, 400, 100, transpose_a, false, true, 1.0f, true, false, false});
        check({1024, 64, 20, transpose_a, false, false, 0.5f, false, true, false});
        check({1025, 64, 20, transpose_a, false, false, 0.5f, false, true, false});
    }
    check({192, 192, 700, true, false, false, 0.0f, false, false, true});
}

// A long piece of K has panels of fewer columns: here two ranges, in f32 and in bf16.
TEST_P(GemmTest, NarrowPanelsOfLongK) {
    for (const bool transpose_b : {false, true}) {
        check({30, 900, 768, false, transpose_b, false, 1.0f, true, false, false});
        check({9, 600, 3200, false, transpose_b, false, 1.0f, true, false, false});
    }
}

TEST_P(GemmTest, BiasAndBeta) {
    for (const int64_t k : {64, 4200}) {
        check({33, 100, k, false, true, false, 0.0f, true, false, false});
        check({33, 100, k, false, true, true, 0.0f, true, false, false});
        check({33, 192, k, false, false, false, 8.125f, false, true, false});
    }
}

TEST_P(GemmTest, MirrorsSymmetricResults) {
    for (const int64_t side : {5, 64, 70, 200, 1100}) {
        check({side, side, 48, false, true, false, 0.0f, false, false, true});
        check({side, side, 40, true, false, false, 0.0f, false, false, true});
    }
    check({200, 200, 4200, false, true, false, 0.0f, false, false, true});
    check({200, 200, 1100, true, false, false, 0.0f, false, false, true});
}

}  // namespace
}  // namespace speedrun::testing
