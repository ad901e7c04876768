#include "tests/kernels/op_test_support.h"
#include "tests/errors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

namespace speedrun::testing {

namespace {

constexpr int64_t kGuard = 256;  // bytes; keeps the alignment of buffers
constexpr char kPoison = static_cast<char>(0xff);

// Shared by the tests of a suite, so that shapes run with caches filled by other shapes.
std::map<std::pair<const BackendFactory*, int>, std::unique_ptr<Harness>>& harnesses() {
    static std::map<std::pair<const BackendFactory*, int>, std::unique_ptr<Harness>> all;
    return all;
}

Harness& harness(const BackendFactory& factory, int num_threads) {
    auto& slot = harnesses()[{&factory, num_threads}];
    if (!slot) slot = std::make_unique<Harness>(factory, num_threads);
    return *slot;
}

// Calls body.template operator()<Real>() with the type of a tensor's elements.
template <class Body>
auto with_type(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::f32:
            return body.template operator()<float>();
        case DType::bf16:
            return body.template operator()<Bf16>();
        case DType::e4m3:
            return body.template operator()<E4m3>();
        case DType::e5m2:
            return body.template operator()<E5m2>();
        default:
            return body.template operator()<int32_t>();
    }
}

}  // namespace

Harness::Harness(const BackendFactory& factory, int num_threads)
    : backend_(factory.make(num_threads, false)), stream_(backend_.device->create_stream("compute")) {}

void Harness::fetch(void* destination, const void* source, int64_t bytes) {
    device().copy(destination, source, bytes, stream());
    stream().synchronize();
}

Tensor Harness::allocate(DType dtype, Dims dims, const void* values, bool constant) {
    Tensor shape(nullptr, dtype, dims);
    const int64_t bytes = shape.bytes();
    std::vector<char> host(static_cast<size_t>(bytes + 2 * kGuard), kPoison);
    if (values) std::memcpy(host.data() + kGuard, values, static_cast<size_t>(bytes));
    Buffer buffer(device(), "test", MemoryCategory::activations, bytes + 2 * kGuard);
    fetch(buffer.data(), host.data(), buffer.bytes());
    shape.data = static_cast<char*>(buffer.data()) + kGuard;
    std::vector<char> expected;
    if (constant) expected.assign(host.begin() + kGuard, host.end() - kGuard);
    allocations_.push_back({std::move(buffer), bytes, std::move(expected)});
    return shape;
}

Tensor Harness::upload(const Matrix& values, DType dtype, Dims dims, bool constant) {
    const std::vector<char> bytes = with_type(dtype, [&]<class Real>() {
        std::vector<char> result(values.values.size() * sizeof(Real));
        char* to = result.data();
        for (const double value : values.values) {
            const auto real = static_cast<Real>(static_cast<float>(value));
            std::memcpy(to, &real, sizeof real);
            to += sizeof real;
        }
        return result;
    });
    const void* source = bytes.data();
    Tensor tensor = dims.size() ? allocate(dtype, dims, source, constant)
                                : allocate(dtype, {values.rows, values.cols}, source, constant);
    if (tensor.numel() != values.size()) throw_internal("{} values for {}", values.size(), tensor.describe());
    return tensor;
}

Tensor Harness::input(const Matrix& values, DType dtype, Dims dims) {
    return upload(values, dtype, dims, true);
}

Tensor Harness::inout(const Matrix& values, DType dtype, Dims dims) {
    return upload(values, dtype, dims, false);
}

namespace {

Matrix widened(const Matrix& x, Margin margin) {
    Matrix wide(x.rows, margin.left + x.cols + margin.right, 0.5);
    for (int64_t t = 0; t < x.rows; ++t)
        for (int64_t i = 0; i < x.cols; ++i) wide(t, margin.left + i) = x(t, i);
    return wide;
}

}  // namespace

// The columns of an allocation, whose margin must stay.
Tensor Harness::inner(const Tensor& wide, int64_t cols, Margin margin) {
    const int64_t size = size_of(wide.dtype);
    Allocation& allocation = allocations_.back();
    allocation.expected.resize(static_cast<size_t>(allocation.bytes));
    fetch(allocation.expected.data(), wide.data, allocation.bytes);
    allocation.pitch = wide.cols() * size;
    allocation.begin = margin.left * size;
    allocation.end = (margin.left + cols) * size;
    return wide.column_slice(margin.left, cols);
}

Tensor Harness::input(const Matrix& values, DType dtype, Margin margin) {
    return input(widened(values, margin), dtype).column_slice(margin.left, values.cols);
}

Tensor Harness::inout(const Matrix& values, DType dtype, Margin margin) {
    return inner(inout(widened(values, margin), dtype), values.cols, margin);
}

Tensor Harness::output(const Matrix& like, DType dtype, Margin margin) {
    return inner(output(dtype, {like.rows, margin.left + like.cols + margin.right}), like.cols, margin);
}

Tensor Harness::input(const Indices& values) {
    return allocate(DType::i32, {static_cast<int64_t>(values.size())}, values.data(), true);
}

Tensor Harness::output(DType dtype, Dims dims) {
    return allocate(dtype, dims, nullptr, false);
}

Matrix Harness::read(const Tensor& tensor) {
    Matrix values(tensor.rows(), tensor.cols());
    if (values.empty()) return values;
    const int64_t elements = (values.rows - 1) * tensor.row_stride + values.cols;
    std::vector<char> host(static_cast<size_t>(elements * size_of(tensor.dtype)));
    fetch(host.data(), tensor.data, static_cast<int64_t>(host.size()));
    with_type(tensor.dtype, [&]<class Real>() {
        double* to = values.values.data();
        for (int64_t r = 0; r < values.rows; ++r) {
            const char* from = host.data() + r * tensor.row_stride * size_of(tensor.dtype);
            for (int64_t c = 0; c < values.cols; ++c, from += sizeof(Real)) {
                Real real;
                std::memcpy(static_cast<void*>(&real), from, sizeof real);
                *to++ = real;
            }
        }
    });
    return values;
}

void Harness::finish() {
    stream().synchronize();
    for (const Allocation& allocation : allocations_) {
        std::vector<char> host(static_cast<size_t>(allocation.buffer.bytes()));
        fetch(host.data(), allocation.buffer.data(), allocation.buffer.bytes());
        const auto is_poison = [](char byte) { return byte == kPoison; };
        EXPECT_TRUE(std::all_of(host.begin(), host.begin() + kGuard, is_poison)) << "written before a tensor";
        EXPECT_TRUE(std::all_of(host.end() - kGuard, host.end(), is_poison)) << "written past a tensor's end";
        bool changed = false;
        for (size_t i = 0; i < allocation.expected.size(); ++i) {
            const int64_t at = allocation.pitch ? static_cast<int64_t>(i) % allocation.pitch : -1;
            const bool stays = at < allocation.begin || at >= allocation.end;
            changed = changed || (stays && allocation.expected[i] != host[kGuard + i]);
        }
        EXPECT_FALSE(changed) << "an input, or columns beside an output, of " << allocation.bytes
                              << " bytes were changed";
    }
    allocations_.clear();
}

void OpTest::TearDownTestSuite() {
    harnesses().clear();
}

Outputs OpTest::run(const std::function<Outputs(Harness&)>& body,
                    const std::vector<int>& thread_counts) const {
    Outputs first;
    for (int num_threads : thread_counts) {
        Harness& h = harness(backend(), num_threads);
        Outputs outputs = body(h);
        h.finish();
        for (size_t i = 0; i < first.size(); ++i) {
            expect_same_bits(outputs[i], first[i],
                             fmt::format("rerun with {} threads: output {}", num_threads, i));
        }
        if (first.empty()) first = std::move(outputs);
    }
    return first;
}

void OpTest::check(const std::function<Checks(Harness&)>& body) const {
    Checks checks;
    const Outputs out = run([&](Harness& h) {
        checks = body(h);
        std::erase_if(checks, [](const Check& c) { return !c.tensor.present(); });
        Outputs read;
        for (const Check& c : checks) read.push_back(h.read(c.tensor));
        return read;
    });
    for (size_t i = 0; i < checks.size(); ++i) {
        const Check& c = checks[i];
        if (c.tolerance)
            expect_close(out[i], c.expected, *c.tolerance, c.name);
        else
            expect_same_bits(out[i], c.expected, c.name);
    }
}

void OpTest::expect_error(const std::function<void(Harness&)>& body, std::vector<std::string> parts) const {
    Harness& h = harness(backend(), 1);
    try {
        body(h);
        ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
        for (const std::string& part : parts) {
            EXPECT_THAT(error.what(), HasSubstr(part))
                << "'" << error.what() << "' does not mention '" << part << "'";
        }
    }
    h.finish();
}

std::string param_name(const ::testing::TestParamInfo<OpTest::ParamType>& info) {
    return fmt::format("{}_{}", std::get<0>(info.param)->name, name_of(std::get<1>(info.param)));
}

Matrix rounded(Matrix values, DType dtype) {
    for (double& value : values.values) {
        const float f32 = static_cast<float>(value);
        value = f32;
        if (dtype == DType::bf16) value = static_cast<float>(Bf16(f32));
        if (is_fp8(dtype)) value = reference::fp8(f32, dtype);
    }
    return values;
}

Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, DType dtype, double deviation) {
    std::mt19937_64 generator(seed * 1000003 + static_cast<uint64_t>(rows * 4099 + cols));
    std::normal_distribution<double> normal(0.0, deviation);
    Matrix values(rows, cols);
    for (double& value : values.values) value = normal(generator);
    return rounded(std::move(values), dtype);
}

Matrix added(bool accumulate, const Matrix& expected, const Matrix& before) {
    return accumulate ? reference::plus(expected, before) : expected;
}

Indices random_indices(int64_t count, int64_t limit, uint64_t seed) {
    std::mt19937_64 generator(seed);
    Indices indices(static_cast<size_t>(count));
    for (int32_t& index : indices) index = static_cast<int32_t>(generator() % static_cast<uint64_t>(limit));
    return indices;
}

void expect_close(const Matrix& actual, const Matrix& expected, Tolerance tolerance,
                  const std::string& name) {
    ASSERT_EQ(actual.size(), expected.size()) << name;
    if (expected.empty()) return;
    const double overall = reference::norm(expected) / std::sqrt(static_cast<double>(expected.size()));
    double worst_excess = 0.0;
    int64_t worst_row = -1, worst_col = -1, num_bad = 0;
    for (int64_t r = 0; r < expected.rows; ++r) {
        const Matrix row = reference::row_block(expected, r, 1);
        const double scale =
            std::max(overall, reference::norm(row) / std::sqrt(static_cast<double>(row.size())));
        for (int64_t c = 0; c < expected.cols; ++c) {
            const double value = expected(r, c);
            const double allowed =
                tolerance.relative * std::abs(value) + tolerance.scaled * scale + tolerance.absolute;
            const double error = std::abs(actual[r * expected.cols + c] - value);
            if (error <= allowed) continue;  // false for NaN
            ++num_bad;
            const double excess = std::isnan(error) ? INFINITY : error / std::max(allowed, 1e-300);
            if (excess > worst_excess)
                std::tie(worst_excess, worst_row, worst_col) = std::tuple(excess, r, c);
        }
    }
    if (num_bad == 0) return;
    const double got = actual[worst_row * expected.cols + worst_col], wanted = expected(worst_row, worst_col);
    ADD_FAILURE() << fmt::format(
        "{}: {} of {} elements are wrong; worst at [{},{}] of {}x{}: {:.9g}, reference {:.9g}, "
        "error {:.3g} is {:.3g} times what is allowed",
        name, num_bad, expected.size(), worst_row, worst_col, expected.rows, expected.cols, got, wanted,
        std::abs(got - wanted), worst_excess);
}

void expect_same_bits(const Matrix& actual, const Matrix& expected, const std::string& name) {
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (int64_t i = 0; i < expected.size(); ++i) {
        if (std::memcmp(&actual.values[i], &expected.values[i], sizeof(double)) == 0) continue;
        ADD_FAILURE() << fmt::format("{}: element {} of {}x{} is {:.17g}, not {:.17g}", name, i,
                                     expected.rows, expected.cols, actual[i], expected[i]);
        return;
    }
}

void expect_all_nan(const Matrix& actual, const std::string& name) {
    for (int64_t i = 0; i < actual.size(); ++i) {
        if (!std::isnan(actual[i])) {
            ADD_FAILURE() << fmt::format("{}: element {} was written: {:.9g}", name, i, actual[i]);
            return;
        }
    }
}

}  // namespace speedrun::testing
