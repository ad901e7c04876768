// Elements of the declarations of operations. One operation is one struct in a header of its family
// (kernels/ops/embedding.h, matmul.h, norm.h, …): its arguments by name, with formula, shapes and types.
//   check()    throws for arguments that do not fit, with the actual values; Ops calls it before a backend
//   traffic()  adds the least bytes moved
//   product()  returns the sizes of a matrix product
//
// Legend: T tokens (rows of all sequences, flattened) · S sequence length · C model width · H heads · D head
// size · V vocabulary (padded) · M, N, K sizes of a matrix product · n elements, or matrices of R rows and C
// columns · P positions.
// Types: "real" is the compute type, f32 or bf16, the same for all real arguments of a call; sums, statistics
// and losses are f32. Outputs come first, then inputs, sizes and options. A field with a default is optional;
// an absent Tensor stands for one that is not given. Gradients are named dX; "accumulate" adds to what the
// output holds, otherwise the output is overwritten; (+)= says so in formulas.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/device/tensor.h"

namespace speedrun::op {

// First member of all arguments. Nothing but its own default initialises it, so a call that gives arguments
// by position does not compile: two tensors of one shape that change places would go unseen. A required
// argument that a call forgets is a warning of GCC's -Wextra.
struct ByName {
    explicit ByName() = default;
};

// The least bytes that a call moves: each operand read once, each result written once. An absent tensor has
// none; scratch memory is not counted.
class Traffic {
  public:
    template <class... Tensors>
    void reads(const Tensors&... tensors) {
        read_ += (int64_t{0} + ... + tensors.bytes());
    }
    // Some columns of wider rows: of each row whole sectors, since a device's memory gives nothing less.
    void reads_columns(const Tensor& columns) {
        if (columns.row_stride == columns.cols()) return reads(columns);
        const int64_t bytes = columns.cols() * size_of(columns.dtype);
        read_ += columns.rows() * ((bytes + kSector - 1) / kSector * kSector);
    }
    template <class... Tensors>
    void writes(const Tensors&... tensors) {
        written_ += (int64_t{0} + ... + tensors.bytes());
    }
    template <class... Tensors>
    void updates(const Tensors&... tensors) {  // in place: read and written
        reads(tensors...);
        writes(tensors...);
    }
    template <class... Tensors>
    void adds_to(bool accumulate, const Tensors&... tensors) {  // written, or updated to accumulate
        if (accumulate) reads(tensors...);
        writes(tensors...);
    }
    // A row of the table for each of `count` indices, but no more than there are.
    void gathers(const Tensor& table, int64_t count) { read_ += std::min(table.bytes(), rows(table, count)); }
    // All of the table written or, to accumulate, a row for each of `count` indices updated.
    void scatters(bool accumulate, const Tensor& table, int64_t count) {
        if (accumulate) read_ += rows(table, count);
        written_ += accumulate ? rows(table, count) : table.bytes();
    }
    // The rounded copy of the master, which may be the master itself.
    void writes_copy(const Tensor& parameter, const Tensor& master) {
        if (!parameter.data || parameter.data != master.data) writes(parameter);
    }

    int64_t read() const { return read_; }
    int64_t written() const { return written_; }

    static constexpr int64_t kSector = 32;  // bytes

  private:
    static int64_t rows(const Tensor& table, int64_t count) {
        return count * table.cols() * size_of(table.dtype);
    }
    int64_t read_ = 0, written_ = 0;
};

// Sizes of an operation that is a matrix product, for its name in profiles.
struct ProductShape {
    std::array<int64_t, 3> sizes{};  // M, N, K, or n, R, C of a batch; zeros: no product
    std::string_view layout = {};    // "nt": a normal, b transposed; empty where there is no choice
};

}  // namespace speedrun::op
