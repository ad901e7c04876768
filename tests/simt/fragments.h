// Common code of tests of tensor-core matmuls: one block of a kernel, small matrices of integers, and
// positions of results.
#pragma once

#include <random>
#include <vector>

#include "kernels/cuda/blocks/launch.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing {

inline constexpr simt::Order kOrders[] = {simt::Order::forward, simt::Order::reverse, simt::Order::random};

// Runs one block of a kernel in the given order.
template <class... Parameters, class... Args>
void run(simt::Order order, int threads, int64_t shared_bytes, void (*kernel)(Parameters...), Args... args) {
    simt::SimtDevice device({order, 7});
    const auto stream = device.create_stream("test");
    launch(kernel, dim3(1), dim3(static_cast<unsigned>(threads)), shared_bytes, *stream, args...);
    stream->synchronize();
}

struct Small {  // a matrix of bf16, rows adjacent; aligned for cp.async
    int rows, cols;
    std::vector<float4> storage;

    Small(int rows_, int cols_)
        : rows(rows_), cols(cols_), storage(static_cast<size_t>(rows_ * cols_ + 7) / 8) {}
    Bf16* data() { return reinterpret_cast<Bf16*>(storage.data()); }
    Bf16& operator()(int row, int col) { return data()[row * cols + col]; }
};
inline Small random_integers(int rows, int cols, unsigned seed) {
    Small x(rows, cols);
    std::mt19937 generator(seed);
    for (int i = 0; i < rows * cols; ++i)
        x.data()[i] = Bf16(static_cast<float>(static_cast<int>(generator() % 17) - 8));
    return x;
}
inline Small identity(int rows, int cols) {
    Small x(rows, cols);
    for (int i = 0; i < rows * cols; ++i) x.data()[i] = Bf16(i / cols == i % cols ? 1.0f : 0.0f);
    return x;
}
inline Small transposed(Small& x) {
    Small y(x.cols, x.rows);
    for (int i = 0; i < x.rows; ++i) {
        for (int j = 0; j < x.cols; ++j) y(j, i) = x(i, j);
    }
    return y;
}
inline std::vector<float> product(Small& a, Small& b) {
    std::vector<float> c(static_cast<size_t>(a.rows * b.cols));
    for (int i = 0; i < a.rows; ++i) {
        for (int j = 0; j < b.cols; ++j) {
            for (int k = 0; k < a.cols; ++k)
                c[static_cast<size_t>(i * b.cols + j)] += float(a(i, k)) * float(b(k, j));
        }
    }
    return c;
}

struct Place {
    int row, col;
};
inline Place place_in_c(int lane, int i) {  // c0 … c3
    return {(lane >> 2) + (i >= 2 ? 8 : 0), (lane % 4) * 2 + (i & 1)};
}

}  // namespace speedrun::testing
