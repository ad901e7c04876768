// Polar Express by wgmma in three orders of threads: every matmul of the last iteration against float64, and the factors.
#include "kernels/cuda/ops/polar_express_wgmma.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "tests/reference/reference.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing::polar_express_wgmma_test {

using reference::Matrix;

struct Batch {
    int64_t n, rows, cols;
    int64_t side() const { return std::min(rows, cols); }
};

// Memory of a call, with a guard after each tensor.
class Problem {
  public:
    Problem(const std::vector<Batch>& batches, simt::Order order)
        : device_({.order = order,
                   .seed = 5,
                   .kernels_wait = true,
                   .shared_memory = simt::kSharedMemoryOfH100,
                   .multiprocessors = 2}),  // a block has several tiles
          stream_(device_.create_stream("test")) {
        uint32_t random = 1;
        for (const auto& [n, rows, cols] : batches) {
            const Tensor x = allocate({n, rows, cols});
            for (int64_t i = 0; i < x.numel(); ++i) {
                random = random * 1664525u + 1013904223u;
                x.as<Bf16>()[i] = Bf16(static_cast<float>(random >> 8) / (1 << 24) - 0.5f);
            }
            call.x.push_back(x);
        }
        call.workspace = allocate({op::PolarExpress::workspace_size(call.x)});
    }

    void run() {
        for (const Tensor& x : call.x) ASSERT_TRUE(fits_polar_express_wgmma(x, call.workspace));
        const auto normalize = [&](const Tensor& out, const Tensor& x) {
            static_cast<simt::SimtStream&>(*stream_).cpu().submit("normalize", [=] {
                const int64_t count = x.shape[1] * x.shape[2];
                for (int64_t matrix = 0; matrix < x.shape[0]; ++matrix) {
                    const Bf16* const from = x.as<Bf16>() + matrix * count;
                    double squares = 0;
                    for (int64_t i = 0; i < count; ++i) squares += double{from[i]} * double{from[i]};
                    for (int64_t i = 0; i < count; ++i)
                        out.as<Bf16>()[matrix * count + i] =
                            Bf16(static_cast<float>(from[i] / (1.02 * std::sqrt(squares))));
                }
            });
        };
        polar_express_wgmma(call, normalize, *stream_);
        stream_->synchronize();
        for (const auto& [buffer, bytes] : buffers_)
            for (int64_t i = bytes; i < buffer.bytes(); ++i)
                ASSERT_EQ(static_cast<const unsigned char*>(buffer.data())[i], 0xff)
                    << "written after a tensor";
    }

    op::PolarExpress call{.x = {}, .workspace = {}};

  private:
    Tensor allocate(std::initializer_list<int64_t> dims) {
        constexpr int64_t kGuard = 1024;
        int64_t bytes = size_of(DType::bf16);
        for (const int64_t dim : dims) bytes *= dim;
        buffers_.emplace_back(Buffer(device_, "test", MemoryCategory::workspace, bytes + kGuard), bytes);
        const Buffer& buffer = buffers_.back().first;
        std::memset(buffer.data(), 0xff, static_cast<size_t>(buffer.bytes()));  // NaN
        return buffer.tensor(DType::bf16, dims);
    }

    simt::SimtDevice device_;
    std::unique_ptr<Stream> stream_;
    std::vector<std::pair<Buffer, int64_t>> buffers_;
};

Matrix matrix_at(const Bf16* from, int64_t rows, int64_t cols) {
    Matrix m(rows, cols);
    for (int64_t i = 0; i < m.size(); ++i) m[i] = from[i];
    return m;
}

// Every element within its rounding and that of an f32 sum.
void expect_rounded(const Matrix& actual, const Matrix& expected, const char* name) {
    for (int64_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 0x1.1p-8 * std::abs(expected[i]) + 1e-4)
            << name << " at " << i / expected.cols << ", " << i % expected.cols;
}

// The last iteration leaves its operands in the workspace: A and B of all matrices of one side, then their X.
void expect_last_iteration(const Problem& problem, const std::vector<Batch>& batches) {
    const auto [a, b, c] = kPolarExpress.back();
    const Bf16* at = problem.call.workspace.as<Bf16>();
    std::map<int64_t, std::vector<size_t>> by_side;
    for (size_t i = 0; i < batches.size(); ++i) by_side[batches[i].side()].push_back(i);
    for (const auto& [side, indices] : by_side) {
        int64_t matrices = 0, matrix = 0;
        for (const size_t i : indices) matrices += batches[i].n;
        const int64_t square = side * side;
        const Bf16* from = at + 2 * matrices * square;
        for (const size_t i : indices) {
            const auto [n, rows, cols] = batches[i];
            for (int64_t k = 0; k < n; ++k, ++matrix, from += rows * cols) {
                const Matrix x = matrix_at(from, rows, cols),
                             gram = matrix_at(at + matrix * square, side, side),
                             polynomial = matrix_at(at + (matrices + matrix) * square, side, side),
                             result = matrix_at(problem.call.x[i].as<Bf16>() + k * rows * cols, rows, cols);
                const bool wide = rows <= cols;
                expect_rounded(gram, wide ? reference::gram(x) : reference::gram(reference::transposed(x)),
                               "A");
                expect_rounded(polynomial, plus(times(gram, b), times(reference::matmul(gram, gram), c)),
                               "B");
                expect_rounded(result,
                               plus(times(x, a), wide ? reference::matmul(polynomial, x)
                                                      : reference::matmul(x, polynomial)),
                               "X");
                for (int64_t r = 0; r < side; ++r)
                    for (int64_t j = 0; j < r; ++j)
                        ASSERT_TRUE(gram(r, j) == gram(j, r) && polynomial(r, j) == polynomial(j, r))
                            << r << ", " << j << ": not symmetric";
            }
        }
        at = from;
    }
}

void expect_results(const std::vector<Batch>& batches, const std::vector<simt::Order>& orders) {
    for (const simt::Order order : orders) {
        SCOPED_TRACE("order " + std::to_string(static_cast<int>(order)));
        Problem problem(batches, order);
        problem.run();
        expect_last_iteration(problem, batches);
    }
}

// Partial tiles, wide and tall matrices of one side, and a batch without matrices.
TEST(PolarExpressWgmma, LastIterationMatchesFloat64) {
    expect_results({{2, 24, 8}, {0, 8, 24}, {1, 72, 136}, {1, 136, 72}},
                   {simt::Order::forward, simt::Order::reverse, simt::Order::random});
}

// Tiles on both sides of the diagonal.
TEST(PolarExpressWgmma, SeveralTilesMatchFloat64) {
    expect_results({{1, 264, 264}}, {simt::Order::random});
}

TEST(PolarExpressWgmma, FitsAlignedBf16) {
    const auto fits = [](DType dtype, int64_t rows, int64_t cols, uintptr_t address) {
        const Tensor x(reinterpret_cast<void*>(address), dtype, {1, rows, cols});
        return fits_polar_express_wgmma(x, Tensor(nullptr, dtype, {8}));
    };
    EXPECT_TRUE(fits(DType::bf16, 16, 24, 1024));
    EXPECT_FALSE(fits(DType::f32, 16, 24, 1024));
    EXPECT_FALSE(fits(DType::bf16, 12, 24, 1024));
    EXPECT_FALSE(fits(DType::bf16, 16, 28, 1024));
    EXPECT_FALSE(fits(DType::bf16, 16, 24, 1032));
}

}  // namespace speedrun::testing::polar_express_wgmma_test
