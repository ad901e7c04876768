// Lookups in tables of rows, and their gradients.
#pragma once

#include "kernels/ops/op.h"

namespace speedrun::op {

// Rows of ±1: s[t,c] = −1 if bit c mod 32 of word c/32 of bits[row[t]] is set, else 1.
struct RowSigns {
    Tensor bits = {};  // i32 [R,⌈C/32⌉]
    Tensor row = {};   // i32 [T]

    bool present() const { return bits.present(); }
    void check(int64_t rows, int64_t cols) const {
        if (!present()) return;
        expect(row, DType::i32, {rows}, "embedding signs.row");
        expect(bits, DType::i32, {bits.rows(), (cols + 31) / 32}, "embedding signs.bits");
    }
};

// out[t] = s[t] ⊙ table[index[t]] (+ position_table[position[t]]); without signs s = 1. With `others`, the table is
// part of a larger one, and index V refers to a row on another rank, here 0.
struct EmbeddingForward {
    ByName by_name = ByName();
    Tensor out;                  // real [T,C]
    Tensor index;                // i32 [T]
    Tensor table;                // real [V,C]
    Tensor position = {};        // i32 [T], with position_table
    Tensor position_table = {};  // real [P,C]
    RowSigns signs = {};
    bool others = false;

    void check() const {
        const int64_t rows = out.rows(), cols = out.cols();
        expect(index, DType::i32, {rows}, "embedding index");
        expect(table, out.dtype, {table.rows(), cols}, "embedding table");
        if (position_table.present()) {
            expect(position, DType::i32, {rows}, "embedding position");
            expect(position_table, out.dtype, {position_table.rows(), cols}, "embedding position_table");
        }
        signs.check(rows, cols);
    }
    void traffic(Traffic& t) const {
        t.writes(out);
        t.reads(index, position);
        t.gathers(table, index.numel());
        t.gathers(position_table, index.numel());
        t.reads(signs.row);
        t.gathers(signs.bits, index.numel());
    }
};

// order[1] = t = 0 … T−1, stably sorted by index[t]; order[0] = index[t] in that order.
struct SortIds {
    ByName by_name = ByName();
    Tensor order;         // i32 [2,T]
    Tensor index;         // i32 [T], each in [0, limit)
    int64_t limit;        // rows of the table
    bool others = false;  // index may equal limit: rows on other ranks

    void check() const {
        expect(index, DType::i32, {index.numel()}, "sort_ids index");
        expect(order, DType::i32, {2, index.numel()}, "sort_ids order");
    }
    void traffic(Traffic& t) const {
        t.writes(order);
        t.reads(index);
    }
};

// dtable[v] (+)= Σ_{t: index[t]=v} s[t] ⊙ dout[t], in an order that depends only on index.
struct EmbeddingBackward {
    ByName by_name = ByName();
    Tensor dtable;        // f32 [V,C]
    Tensor order;         // i32 [2,T], output of SortIds for index
    Tensor dout;          // real [T,C]
    RowSigns signs = {};  // the forward's
    bool accumulate;      // rows outside index stay unchanged
    bool others = false;  // skips tokens with index V

    void check() const {
        expect(order, DType::i32, {2, dout.rows()}, "embedding order");
        expect(dtable, DType::f32, {dtable.rows(), dout.cols()}, "embedding dtable");
        signs.check(dout.rows(), dout.cols());
    }
    void traffic(Traffic& t) const {
        t.scatters(accumulate, dtable, dout.rows());
        t.reads(order, dout, signs.row);
        t.gathers(signs.bits, dout.rows());
    }
};

#define SPEEDRUN_EMBEDDING_OPS(X)          \
    X(embedding_forward, EmbeddingForward) \
    X(sort_ids, SortIds)                   \
    X(embedding_backward, EmbeddingBackward)

}  // namespace speedrun::op
