// What every kernel test uses: a fixture over backends × element types, memory that notices stray writes,
// random inputs, and comparison with the float64 reference.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/kernels/backends.h"
#include "tests/reference/reference.h"

namespace speedrun::testing {

using reference::Indices;
using reference::Matrix;
using Outputs = std::vector<Matrix>;
using Dims = std::initializer_list<int64_t>;  // none given: the matrix's rows and columns

// One device with its operations and a stream, and the tensors of one call. All memory starts as NaN (as −1
// if read as i32), guard zones around each tensor included, so that an element that is not written, a read
// past the end and a write past the end all show.
class Harness {
  public:
    Harness(const BackendFactory& factory, int num_threads);

    Device& device() { return *backend_.device; }
    Ops& ops() { return *backend_.ops; }
    Stream& stream() { return *stream_; }

    Tensor input(const Matrix& values, DType dtype,
                 Dims dims = {});  // finish() checks that it was not changed
    Tensor input(const Indices& values);
    Tensor inout(const Matrix& values, DType dtype, Dims dims = {});
    Tensor output(DType dtype, Dims dims);
    Matrix read(const Tensor& tensor);  // waits for the stream; rows × cols of the tensor
    void finish();                      // checks guards and inputs, frees all tensors

  private:
    struct Allocation {
        Buffer buffer;
        int64_t bytes;               // of the tensor between the guards
        std::vector<char> expected;  // of an input
    };
    Tensor allocate(DType dtype, Dims dims, const void* values, bool constant);
    Tensor upload(const Matrix& values, DType dtype, Dims dims, bool constant);
    void fetch(void* destination, const void* source, int64_t bytes);

    Backend backend_;
    std::unique_ptr<Stream> stream_;
    std::vector<Allocation> allocations_;
};

class OpTest : public ::testing::TestWithParam<std::tuple<const BackendFactory*, DType>> {
  protected:
    static void TearDownTestSuite();

    const BackendFactory& backend() const { return *std::get<0>(GetParam()); }
    DType dtype() const { return std::get<1>(GetParam()); }

    // Runs it with each of these numbers of threads; all outputs must agree in every bit. Returns them.
    Outputs run(const std::function<Outputs(Harness&)>& body,
                const std::vector<int>& thread_counts = {1, 1, 2}) const;
    // The call must throw before anything is enqueued, with all of these in its message.
    void expect_error(const std::function<void(Harness&)>& body, std::vector<std::string> parts) const;
};

std::string param_name(const ::testing::TestParamInfo<OpTest::ParamType>& info);

#define SPEEDRUN_OP_TEST_ON(Suite, all_backends)                                                           \
    class Suite : public ::speedrun::testing::OpTest {};                                                   \
    INSTANTIATE_TEST_SUITE_P(                                                                              \
        Backends, Suite,                                                                                   \
        ::testing::Combine(::testing::ValuesIn(all_backends), ::testing::Values(DType::f32, DType::bf16)), \
        ::speedrun::testing::param_name)
#define SPEEDRUN_OP_TEST(Suite) SPEEDRUN_OP_TEST_ON(Suite, ::speedrun::testing::backends())

// ---- inputs: deterministic, and exactly representable in dtype so that kernel and reference see the same
// ------
Matrix rounded(Matrix values, DType dtype);
Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, DType dtype, double deviation = 1.0);
Indices random_indices(int64_t count, int64_t limit, uint64_t seed);

// ---- comparison
// ------------------------------------------------------------------------------------------------ Passes
// where |actual − reference| ≤ relative·|reference| + scaled·scale + absolute; scale is the root mean square
// of the reference's row or, where larger, of all of it (a row may vanish exactly, in the reference only).
struct Tolerance {
    double relative = 0.0;
    double scaled = 0.0;
    double absolute = 0.0;
};

constexpr double kF32Roundoff = 0x1p-24;
constexpr double kBf16Ulp = 0x1p-8;  // rounding to nearest errs by half of it

// A formula of a few operations in f32, rounded once to the output's type. The scaled part is for
// cancellation.
constexpr Tolerance few_operations(DType output) {
    return {output == DType::bf16 ? kBf16Ulp : 16 * kF32Roundoff, 16 * kF32Roundoff};
}
// Sums of `terms` products of like size in f32: partial sums have the size √terms and rounding errors add up
// like a random walk, so the error relative to the result's own size grows like √terms, for any order of
// summation.
inline Tolerance reduction(DType output, int64_t terms) {
    Tolerance tolerance = few_operations(output);
    tolerance.scaled += 8 * std::sqrt(static_cast<double>(terms)) * kF32Roundoff;
    return tolerance;
}
// A sum of `terms` products where the kernel may round intermediate results (probabilities, the normed
// vector) to bf16, which errs by an ulp or two of the typical value whatever the size of the result.
inline Tolerance reduction_of_rounded(DType real, int64_t terms) {
    Tolerance tolerance = reduction(real, terms);
    if (real == DType::bf16) tolerance.scaled += 2 * kBf16Ulp;
    return tolerance;
}

void expect_close(const Matrix& actual, const Matrix& expected, Tolerance tolerance, const std::string& name);
void expect_same_bits(const Matrix& actual, const Matrix& expected, const std::string& name);
void expect_all_nan(const Matrix& actual, const std::string& name);  // nothing was written there

}  // namespace speedrun::testing
