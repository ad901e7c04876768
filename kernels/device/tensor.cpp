#include "kernels/device/tensor.h"

#include <fmt/format.h>

namespace speedrun {

Tensor::Tensor(void* data, DType dtype, std::initializer_list<int64_t> dims) : data(data), dtype(dtype) {
    if (dims.size() == 0 || dims.size() > kMaxRank)
        throw_internal("a tensor has 1 to 4 dimensions, not {}", dims.size());
    for (int64_t dim : dims) {
        if (dim < 0) throw_internal("negative dimension {} in a tensor", dim);
        shape[rank++] = dim;
    }
    row_stride = cols();
}

int64_t Tensor::numel() const {
    int64_t product = rank ? 1 : 0;
    for (int i = 0; i < rank; ++i) product *= shape[i];
    return product;
}

Tensor Tensor::row_slice(int64_t begin, int64_t count) const {
    if (rank != 2 || begin < 0 || count < 0 || begin + count > shape[0]) {
        throw_internal("row_slice({}, {}) of {}", begin, count, describe());
    }
    Tensor slice = *this;
    slice.shape[0] = count;
    if (data) slice.data = static_cast<char*>(data) + begin * row_stride * size_of(dtype);
    return slice;
}

Tensor Tensor::column_slice(int64_t begin, int64_t count) const {
    if (rank != 2 || begin < 0 || count < 0 || begin + count > shape[1]) {
        throw_internal("column_slice({}, {}) of {}", begin, count, describe());
    }
    Tensor slice = *this;
    slice.shape[1] = count;
    if (data) slice.data = static_cast<char*>(data) + begin * size_of(dtype);
    return slice;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> dims) const {
    Tensor result(data, dtype, dims);
    if (!contiguous() || result.numel() != numel()) {
        throw_internal("{} cannot be reshaped to {}", describe(), result.describe());
    }
    return result;
}

std::string Tensor::describe() const {
    std::string text = fmt::format("{}[", name_of(dtype));
    for (int i = 0; i < rank; ++i) text += fmt::format("{}{}", i ? "," : "", shape[i]);
    text += "]";
    if (!contiguous()) text += fmt::format(" rows {} apart", row_stride);
    return text;
}

void Tensor::throw_dtype(DType requested) const {
    throw_internal("a {} tensor was used as {}", describe(), name_of(requested));
}

void expect_shape(const Tensor& tensor, std::initializer_list<int64_t> dims, const char* name) {
    bool same = tensor.rank == static_cast<int>(dims.size());
    int i = 0;
    for (int64_t dim : dims) same = same && tensor.shape[i++] == dim;
    if (!same)
        throw_internal("{}: expected shape {}, got {}", name, Tensor(nullptr, tensor.dtype, dims).describe(),
                       tensor.describe());
}

void expect(const Tensor& tensor, DType dtype, std::initializer_list<int64_t> dims, const char* name) {
    expect_shape(tensor, dims, name);
    if (tensor.dtype != dtype)
        throw_internal("{}: expected {}, got {}", name, name_of(dtype), tensor.describe());
}

void expect_flat(const Tensor& tensor, const char* name) {
    if (!tensor.contiguous()) throw_internal("{}: {} is not contiguous", name, tensor.describe());
}

}  // namespace speedrun
