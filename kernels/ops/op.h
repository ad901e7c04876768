// Building blocks for declarations of operations. One operation is one struct in the header of its family
// (kernels/ops/embedding.h, matmul.h, norm.h, …): its arguments by name, with formula, shapes and types.
//   check()    throws for invalid arguments, with the actual values; Ops calls it before a backend.
//   traffic()  adds the minimum bytes moved.
//   product()  returns the sizes of a matmul.
//
// Legend: T tokens (rows of all sequences, flattened) · S sequence length · C model width · H heads · D head size · V
// vocabulary (padded) · M, N, K sizes of a matmul · n elements, or matrices of R rows and C columns · P positions.
// Types: "real" is the compute dtype, f32 or bf16, equal for all real arguments of a call. Sums, statistics and losses
// are f32. Outputs are first, then inputs, sizes and options. A field with a default is optional; an absent Tensor
// means that it is not given. Gradients are named dX. "accumulate" adds to the output, written (+)= in formulas;
// otherwise the output is overwritten.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/device/tensor.h"

namespace speedrun::op {

// First member of all arguments, which only its own default can initialise. A call with positional arguments therefore
// does not compile: two swapped tensors of equal shape would go unnoticed. GCC's -Wextra warns of a missing required
// argument.
struct ByName {
    explicit ByName() = default;
};

// Minimum bytes that a call moves: each operand read once, each result written once. An absent tensor has none; scratch
// memory is not counted.
class Traffic {
  public:
    template <class... Tensors>
    void reads(const Tensors&... tensors) {
        read_ += (int64_t{0} + ... + tensors.bytes());
    }
    // Some columns of wider rows: whole sectors per row, the unit of device memory.
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
    void updates(const Tensors&... tensors) {  // read and written in place
        reads(tensors...);
        writes(tensors...);
    }
    template <class... Tensors>
    void adds_to(bool accumulate, const Tensors&... tensors) {  // written; with accumulate also read
        if (accumulate) reads(tensors...);
        writes(tensors...);
    }
    // One row of the table for each of `count` indices, at most the whole table.
    void gathers(const Tensor& table, int64_t count) { read_ += std::min(table.bytes(), rows(table, count)); }
    // The whole table written; with accumulate, one row updated for each of `count` indices.
    void scatters(bool accumulate, const Tensor& table, int64_t count) {
        if (accumulate) read_ += rows(table, count);
        written_ += accumulate ? rows(table, count) : table.bytes();
    }
    // The rounded copy of the master, unless it is the master itself.
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

// An elementwise operation declares its operands once, all real [T,C] of one size and type:
//   static void operands(auto& op, auto visit) { visit.writes(op.y, "y"); visit.reads(op.x, "x"); }
// Its check, its traffic and its benchmark case follow from them. Errors have these names.
template <class Op>
void check_elementwise(const Op& op) {
    struct First {
        const Tensor*& tensor;
        void writes(const Tensor& /*operand*/, const char* /*name*/) const {}
        void reads(const Tensor& operand, const char* /*name*/) const {
            if (!tensor) tensor = &operand;
        }
    };
    struct Expect {
        const Tensor& like;
        void writes(const Tensor& operand, const char* name) const {
            expect(operand, like.dtype, {like.rows(), like.cols()}, name);
        }
        void reads(const Tensor& operand, const char* name) const { writes(operand, name); }
    };
    const Tensor* first = nullptr;
    Op::operands(op, First{first});
    Op::operands(op, Expect{*first});
}
template <class Op>
void count_elementwise(const Op& op, Traffic& traffic) {
    struct Count {
        Traffic& traffic;
        void writes(const Tensor& operand, const char* /*name*/) const { traffic.writes(operand); }
        void reads(const Tensor& operand, const char* /*name*/) const { traffic.reads(operand); }
    };
    Op::operands(op, Count{traffic});
}

enum class EpilogueKind : uint8_t { none, relu_squared, relu_squared_fp8, relu_squared_backward, addend };

// Sizes of a matmul, for its name in profiles.
struct ProductShape {
    std::array<int64_t, 3> sizes{};  // M, N, K, or n, R, C of a batch; zeros: no matmul
    std::string_view layout = {};    // "nt": a normal, b transposed; empty if fixed
    EpilogueKind epilogue = EpilogueKind::none;
};

}  // namespace speedrun::op
