// Tensor: a typed view of memory owned by a Buffer. Copying a Tensor copies the view. Goals: shapes that can
// be checked and printed, and rows that need not be adjacent (a slice of packed q|k|v). Non-goals: arbitrary
// strides, broadcasting, ownership.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/device/dtype.h"
#include "kernels/device/error.h"

namespace speedrun {

struct Tensor {
    static constexpr int kMaxRank = 4;

    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<int64_t, kMaxRank> shape{};
    int64_t row_stride = 0;  // elements between rows (a row: index of all leading dimensions, flattened)

    Tensor() = default;
    Tensor(void* data, DType dtype, std::initializer_list<int64_t> dims);

    bool present() const { return rank > 0; }  // an absent tensor is an argument not given
    int64_t numel() const;
    int64_t cols() const { return rank ? shape[rank - 1] : 0; }
    int64_t rows() const { return cols() ? numel() / cols() : 0; }
    bool contiguous() const { return row_stride == cols() || rows() <= 1; }
    int64_t bytes() const { return numel() * size_of(dtype); }

    // Typed pointer to the first element; throws if T is not the tensor's dtype.
    template <class T>
    T* as() const {
        if (dtype != dtype_of<T>()) throw_dtype(dtype_of<T>());
        return static_cast<T*>(data);
    }

    Tensor row_slice(int64_t begin, int64_t count) const;  // rows begin … begin+count of a 2-D view
    Tensor column_slice(int64_t begin,
                        int64_t count) const;  // columns begin … begin+count, rows stay strided
    Tensor reshaped(std::initializer_list<int64_t> dims) const;  // contiguous tensors only
    std::string describe() const;                                // "bf16[4096,256]"

  private:
    [[noreturn]] void throw_dtype(DType requested) const;
};

// Throws unless the tensor has exactly this dtype and shape. The message has `name` and the actual values.
void expect(const Tensor& tensor, DType dtype, std::initializer_list<int64_t> dims, const char* name);
// Throws unless the tensor has these dimensions and a floating dtype.
void expect_shape(const Tensor& tensor, std::initializer_list<int64_t> dims, const char* name);
// Throws unless the rows of the tensor are adjacent.
void expect_flat(const Tensor& tensor, const char* name);

}  // namespace speedrun
