// Problems for wgmma_product() on the host executor: matrices of small integers in wider rows, with exact sums, and the expected
// results.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/ops/product_wgmma.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing {

struct ProductSizes {
    int64_t m, n, k;
};
enum class ProductLayout { nt, nn, tn, e4m3 };

inline std::string name_of(ProductLayout layout) {
    constexpr const char* kNames[] = {"nt", "nn", "tn", "e4m3"};
    return kNames[static_cast<size_t>(layout)];
}

// Memory of one problem. Rows have 32 more bytes than columns need; the fill of inputs there is NaN.
class ProductProblem {
  public:
    ProductProblem(ProductSizes sizes, ProductLayout layout, simt::Options options,
                   simt::Watch* watch = nullptr)
        : sizes_(sizes), device_(options) {
        device_.set_watch(watch);
        stream_ = device_.create_stream("test");
        const bool fp8 = layout == ProductLayout::e4m3;
        product.transpose_a = layout == ProductLayout::tn;
        product.transpose_b = layout == ProductLayout::nt || fp8;
        const DType dtype = fp8 ? DType::e4m3 : DType::bf16;
        const auto [m, n, k] = sizes;
        product.a = product.transpose_a ? integers(dtype, k, m, 1) : integers(dtype, m, k, 1);
        product.b = product.transpose_b ? integers(dtype, n, k, 2) : integers(dtype, k, n, 2);
        product.c = matrix(DType::bf16, m, n);
        if (fp8) {
            product.scale_a = number(0.5f);
            product.scale_b = number(0.25f);
        }
    }

    Tensor matrix(DType dtype, int64_t rows, int64_t cols, int64_t padding = 32) {
        const int64_t stride = cols + padding / size_of(dtype);
        buffers_.emplace_back(device_, "test", MemoryCategory::workspace, rows * stride * size_of(dtype));
        std::memset(buffers_.back().data(), 0xff, static_cast<size_t>(buffers_.back().bytes()));  // NaN
        return buffers_.back().tensor(dtype, {rows, stride}).column_slice(0, cols);
    }
    // Integers from -4 to 4, exact in every type.
    Tensor integers(DType dtype, int64_t rows, int64_t cols, unsigned seed) {
        return filled(matrix(dtype, rows, cols), seed);
    }
    // Rows without padding.
    Tensor flat(DType dtype, int64_t rows, int64_t cols, unsigned seed) {
        return filled(matrix(dtype, rows, cols, 0), seed);
    }
    static Tensor filled(const Tensor& x, unsigned seed) {
        std::mt19937 generator(seed);
        for (int64_t r = 0; r < x.rows(); ++r)
            for (int64_t c = 0; c < x.cols(); ++c)
                set(x, r, c, static_cast<float>(static_cast<int>(generator() % 9) - 4));
        return x;
    }
    Tensor number(float value) {
        const Tensor x = matrix(DType::f32, 1, 1);
        set(x, 0, 0, value);
        return x.reshaped({1});
    }
    Tensor numbers(int64_t count) {
        const Tensor x = matrix(DType::f32, 1, count);
        for (int64_t c = 0; c < count; ++c) set(x, 0, c, static_cast<float>(c % 7) - 3.0f);
        return x.reshaped({count});
    }

    static float at(const Tensor& x, int64_t row, int64_t col) {
        const int64_t i = row * x.row_stride + col;
        if (x.dtype == DType::f32) return static_cast<const float*>(x.data)[i];
        if (x.dtype == DType::bf16) return static_cast<const Bf16*>(x.data)[i];
        return static_cast<const E4m3*>(x.data)[i];
    }
    static void set(const Tensor& x, int64_t row, int64_t col, float value) {
        const int64_t i = row * x.row_stride + col;
        if (x.dtype == DType::f32)
            static_cast<float*>(x.data)[i] = value;
        else if (x.dtype == DType::bf16)
            static_cast<Bf16*>(x.data)[i] = Bf16(value);
        else
            static_cast<E4m3*>(x.data)[i] = E4m3(value);
    }
    // All bytes of the rows, with those outside of the columns.
    static std::vector<uint8_t> bits(const Tensor& x) {
        const auto* const data = static_cast<const uint8_t*>(x.data);
        return {data, data + x.rows() * x.row_stride * size_of(x.dtype)};
    }

    // Sum of an element in float64.
    double sum(int64_t row, int64_t col) const {
        double total = 0;
        for (int64_t i = 0; i < sizes_.k; ++i) {
            const float a = product.transpose_a ? at(product.a, i, row) : at(product.a, row, i);
            const float b = product.transpose_b ? at(product.b, col, i) : at(product.b, i, col);
            total += static_cast<double>(a) * static_cast<double>(b);
        }
        if (product.scale_a.present())
            total *= static_cast<double>(at(product.scale_a, 0, 0)) *
                     static_cast<double>(at(product.scale_b, 0, 0));
        if (product.bias.present()) total += static_cast<double>(at(product.bias, 0, col));
        if (product.addend.present()) total += static_cast<double>(at(product.addend, row, col));
        return total;
    }

    bool run() {
        const bool served = wgmma_product(product, *stream_);
        stream_->synchronize();
        return served;
    }

    simt::SimtDevice& device() { return device_; }
    Stream& stream() { return *stream_; }

    WgmmaProduct product;

  private:
    ProductSizes sizes_;
    simt::SimtDevice device_;
    std::vector<Buffer> buffers_;
    std::unique_ptr<Stream> stream_;
};

}  // namespace speedrun::testing
