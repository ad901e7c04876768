// Fixture of all kernel tests over backends × element types, with memory that detects stray writes, random
// inputs, and comparison with the float64 reference.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/kernels/any_op.h"
#include "tests/kernels/backends.h"
#include "tests/reference/reference.h"

namespace speedrun::testing {

using reference::Indices;
using reference::Matrix;
using Outputs = std::vector<Matrix>;
using Dims = std::initializer_list<int64_t>;  // empty: the matrix's rows and columns
using Ints = std::vector<int64_t>;
inline constexpr std::array kBoth = {false, true};

// Columns of a wider tensor: `left` other columns before them, and `right` after.
struct Margin {
    int64_t left = 0, right = 0;
};

// Calls body(v...) for every combination of values of these lists.
template <size_t I = 0, class Lists, class Body, class... Values>
void sweep(const Lists& lists, const Body& body, const Values&... values) {
    if constexpr (I == std::tuple_size_v<Lists>) {
        SCOPED_TRACE(
            fmt::format("{}", fmt::join(std::array{fmt::to_string(static_cast<double>(values))...}, " ")));
        body(values...);
    } else {
        for (const auto& value : std::get<I>(lists)) sweep<I + 1>(lists, body, values..., value);
    }
}

// A device with its operations and a stream, and the tensors of one call. All memory starts as NaN (−1 if
// read as i32), including guard zones around each tensor. So missing writes, and reads and writes past the
// end, are detected.
class Harness {
  public:
    Harness(const BackendFactory& factory, int num_threads);

    Device& device() { return *backend_.device; }
    Ops& ops() { return *backend_.ops; }
    // Enqueues the operation with these arguments.
    template <class Arguments>
    void call(const Arguments& a) {
        testing::call(ops(), a, stream());
    }
    Stream& stream() { return *stream_; }

    Tensor input(const Matrix& values, DType dtype,
                 Dims dims = {});  // finish() checks that the contents are not changed
    Tensor input(const Indices& values);
    Tensor inout(const Matrix& values, DType dtype, Dims dims = {});
    Tensor output(DType dtype, Dims dims);
    // As the three above, among other columns: finish() checks that these are not changed.
    Tensor input(const Matrix& values, DType dtype, Margin margin);
    Tensor inout(const Matrix& values, DType dtype, Margin margin);
    Tensor output(const Matrix& like, DType dtype, Margin margin);
    Matrix read(const Tensor& tensor);  // waits for the stream; rows × cols of the tensor
    void finish();                      // checks guards and inputs, frees all tensors

  private:
    struct Allocation {
        Buffer buffer;
        int64_t bytes;               // bytes of the tensor between the guards
        std::vector<char> expected;  // contents that stay: of an input, or of a margin
        int64_t pitch = 0;           // bytes of a row; 0: all contents stay
        int64_t begin = 0, end = 0;  // bytes of a row that may change
    };
    Tensor inner(const Tensor& wide, int64_t cols, Margin margin);
    Tensor allocate(DType dtype, Dims dims, const void* values, bool constant);
    Tensor upload(const Matrix& values, DType dtype, Dims dims, bool constant);
    void fetch(void* destination, const void* source, int64_t bytes);

    Backend backend_;
    std::unique_ptr<Stream> stream_;
    std::vector<Allocation> allocations_;
};

// Passes if |actual − reference| ≤ relative·|reference| + scaled·scale + absolute. scale is the root mean
// square of the reference's row or, if larger, of the whole reference. A row may vanish exactly, in the
// reference only.
struct Tolerance {
    double relative = 0.0;
    double scaled = 0.0;
    double absolute = 0.0;
};

// A result of a call and its reference. A tensor that is absent is not compared.
struct Check {
    Tensor tensor;
    Matrix expected;
    std::string name;
    std::optional<Tolerance> tolerance = {};  // absent: equal bits
};
using Checks = std::vector<Check>;

class OpTest : public ::testing::TestWithParam<std::tuple<const BackendFactory*, DType>> {
  protected:
    static void TearDownTestSuite();

    const BackendFactory& backend() const { return *std::get<0>(GetParam()); }
    DType dtype() const { return std::get<1>(GetParam()); }

    // Runs body with each of these numbers of threads, and returns its outputs. All outputs must have equal
    // bits.
    Outputs run(const std::function<Outputs(Harness&)>& body,
                const std::vector<int>& thread_counts = {1, 1, 2}) const;
    // As run; compares the returned tensors with their references.
    void check(const std::function<Checks(Harness&)>& body) const;
    // Expects that the call throws before it enqueues work, with all of these parts in its message.
    void expect_error(const std::function<void(Harness&)>& body, std::vector<std::string> parts) const;
};

std::string param_name(const ::testing::TestParamInfo<OpTest::ParamType>& info);

#define SPEEDRUN_ON_BACKENDS(Suite, all_backends)                                                          \
    INSTANTIATE_TEST_SUITE_P(                                                                              \
        Backends, Suite,                                                                                   \
        ::testing::Combine(::testing::ValuesIn(all_backends), ::testing::Values(DType::f32, DType::bf16)), \
        ::speedrun::testing::param_name)
#define SPEEDRUN_OP_TEST_ON(Suite, all_backends)         \
    class Suite : public ::speedrun::testing::OpTest {}; \
    SPEEDRUN_ON_BACKENDS(Suite, all_backends)
#define SPEEDRUN_OP_TEST(Suite) SPEEDRUN_OP_TEST_ON(Suite, ::speedrun::testing::backends())

// ---- inputs: deterministic, and exact in dtype, so that kernel and reference have the same inputs
Matrix rounded(Matrix values, DType dtype);
Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, DType dtype, double deviation = 1.0);
Indices random_indices(int64_t count, int64_t limit, uint64_t seed);

// ---- comparison
constexpr double kF32Roundoff = 0x1p-24;
constexpr double kBf16Ulp = 0x1p-8;  // rounding to nearest errs by half of it

// A formula of a few operations in f32, rounded once to the output's type. The scaled term allows for
// cancellation.
constexpr Tolerance few_operations(DType output) {
    return {output == DType::bf16 ? kBf16Ulp : 16 * kF32Roundoff, 16 * kF32Roundoff};
}
// Sums of `terms` products of similar size in f32. Partial sums have the size √terms, and rounding errors add up like
// a random walk. The error relative to the result's size therefore grows like √terms, for any order of summation.
inline Tolerance reduction(DType output, int64_t terms) {
    Tolerance tolerance = few_operations(output);
    tolerance.scaled += 8 * std::sqrt(static_cast<double>(terms)) * kF32Roundoff;
    return tolerance;
}
// Sums of `terms` products where the kernel may round intermediate results (probabilities, the normed vector)
// to bf16. That errs by an ulp or two of the typical value, for any size of the result.
inline Tolerance reduction_of_rounded(DType real, int64_t terms) {
    Tolerance tolerance = reduction(real, terms);
    if (real == DType::bf16) tolerance.scaled += 2 * kBf16Ulp;
    return tolerance;
}

// Sums of `terms` products that may nearly cancel: judged relative to their typical size √terms.
constexpr Tolerance cancelling(int64_t terms) {
    return {16 * kF32Roundoff, 0, 8 * static_cast<double>(terms) * kF32Roundoff};
}
// expected, added to the value before if the call accumulates.
Matrix added(bool accumulate, const Matrix& expected, const Matrix& before);

void expect_close(const Matrix& actual, const Matrix& expected, Tolerance tolerance, const std::string& name);
void expect_same_bits(const Matrix& actual, const Matrix& expected, const std::string& name);
void expect_all_nan(const Matrix& actual, const std::string& name);  // not written

}  // namespace speedrun::testing
