// Covers: kernels/cuda/ops/sort_ids.cu
#include <algorithm>
#include <numeric>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::embedding_test {

SPEEDRUN_OP_TEST(EmbeddingTest);

constexpr int64_t kVocab = 20;  // below most token counts: gradients of equal tokens must be summed
constexpr int64_t kPositions = 40;

// At most one addition, rounded once.
TEST_P(EmbeddingTest, Forward) {
    sweep(std::tuple{Ints{1, 7, 33, 130}, Ints{48, 96, 33}, kBoth}, [&](int64_t rows, int64_t cols,
                                                                        bool positions) {
        const Indices index = random_indices(rows, kVocab, 1), position = random_indices(rows, kPositions, 2);
        const Matrix table = random_matrix(kVocab, cols, 3, dtype());
        const Matrix offsets = positions ? random_matrix(kPositions, cols, 4, dtype()) : Matrix();
        const Matrix expected = reference::embedding_forward(index, table, position, offsets);
        check([&](Harness& h) -> Checks {
            const Tensor y = h.output(dtype(), {rows, cols});
            h.call(op::EmbeddingForward{.out = y,
                                        .index = h.input(index),
                                        .table = h.input(table, dtype()),
                                        .position = positions ? h.input(position) : Tensor(),
                                        .position_table = positions ? h.input(offsets, dtype()) : Tensor()});
            if (!positions) return {{y, expected, "a copy of rows"}};
            return {{y, expected, "out", few_operations(dtype())}};
        });
    });
}

// Gradient of a table that holds `before`, or nothing.
Tensor gradient(Harness& h, const Indices& ids, const Tensor& dout, const Matrix& before, bool accumulate,
                bool others = false) {
    const Tensor dtable = accumulate ? h.inout(before, DType::f32)
                                     : h.output(DType::f32, {before.rows, before.cols}),
                 order = h.output(DType::i32, {2, dout.rows()});
    h.call(op::SortIds{.order = order, .index = h.input(ids), .limit = before.rows, .others = others});
    h.call(op::EmbeddingBackward{
        .dtable = dtable, .order = order, .dout = dout, .accumulate = accumulate, .others = others});
    return dtable;
}

TEST_P(EmbeddingTest, Backward) {
    sweep(std::tuple{Ints{1, 7, 33, 130}, Ints{48, 96, 33}, kBoth},
          [&](int64_t rows, int64_t cols, bool accumulate) {
              const Indices index = random_indices(rows, kVocab, 1);
              const Matrix dout = random_matrix(rows, cols, 2, dtype()),
                           before = random_matrix(kVocab, cols, 3, DType::f32),
                           expected = reference::embedding_backward(kVocab, index, dout);
              check([&](Harness& h) -> Checks {
                  return {{gradient(h, index, h.input(dout, dtype()), before, accumulate),
                           added(accumulate, expected, before), "dtable", reduction(DType::f32, rows)}};
              });
          });
}

// Some columns of 7 rows of signs are −1, packed into the words that an operation reads.
struct RandomSigns {
    Matrix signs;
    Indices row, bits;
    int64_t words;

    RandomSigns(int64_t tokens, int64_t cols) : signs(7, cols), row(random_indices(tokens, 7, 5)) {
        words = (cols + 31) / 32;
        bits.assign(static_cast<size_t>(7 * words), 0);
        const Indices coins = random_indices(7 * cols, 2, 6);
        for (int64_t r = 0; r < 7; ++r) {
            for (int64_t c = 0; c < cols; ++c) {
                const auto minus = static_cast<uint32_t>(coins[static_cast<size_t>(r * cols + c)]);
                signs(r, c) = minus ? -1 : 1;
                int32_t& word = bits[static_cast<size_t>(r * words + c / 32)];
                word = static_cast<int32_t>(static_cast<uint32_t>(word) | minus << (c % 32));
            }
        }
    }
    op::RowSigns in(Harness& h) const {
        return {.bits = h.input(bits).reshaped({7, words}), .row = h.input(row)};
    }
};

TEST_P(EmbeddingTest, WithSigns) {
    sweep(std::tuple{Ints{1, 33, 1003}, Ints{48, 96, 33, 7}}, [&](int64_t rows, int64_t cols) {
        Indices index = random_indices(rows, kVocab, 1);
        for (size_t t = 0; t < index.size(); t += 2) index[t] = 13;
        const Indices position = random_indices(rows, kPositions, 2);
        const Matrix table = random_matrix(kVocab, cols, 3, dtype()),
                     offsets = random_matrix(kPositions, cols, 4, dtype()),
                     dout = random_matrix(rows, cols, 7, dtype());
        const RandomSigns signs(rows, cols);
        const Matrix looked_up = reference::with_signs(reference::embedding_forward(index, table, {}, {}),
                                                       signs.signs, signs.row),
                     placed =
                         reference::plus(looked_up, reference::embedding_forward(position, offsets, {}, {})),
                     gradient_of_table = reference::embedding_backward(
                         kVocab, index, reference::with_signs(dout, signs.signs, signs.row));
        check([&](Harness& h) -> Checks {
            const Tensor y = h.output(dtype(), {rows, cols}), z = h.output(dtype(), {rows, cols}),
                         dtable = h.output(DType::f32, {kVocab, cols}),
                         order = h.output(DType::i32, {2, rows}), ids = h.input(index);
            op::EmbeddingForward forward{
                .out = y, .index = ids, .table = h.input(table, dtype()), .signs = signs.in(h)};
            h.call(forward);
            forward.out = z;
            forward.position = h.input(position);
            forward.position_table = h.input(offsets, dtype());
            h.call(forward);
            h.call(op::SortIds{.order = order, .index = ids, .limit = kVocab});
            h.call(op::EmbeddingBackward{.dtable = dtable,
                                         .order = order,
                                         .dout = h.input(dout, dtype()),
                                         .signs = signs.in(h),
                                         .accumulate = false});
            return {{y, looked_up, "rows with signs"},
                    {z, placed, "rows with signs, and positions", few_operations(dtype())},
                    {dtable, gradient_of_table, "dtable", reduction(DType::f32, rows)}};
        });
    });
}

// Half of the tokens, or all, have one id: runs long enough for a backend to sum them in segments.
TEST_P(EmbeddingTest, BackwardOfFrequentTokens) {
    const int64_t rows = 1003;
    sweep(std::tuple{Ints{48, 33}, Ints{2, 1}}, [&](int64_t cols, int64_t share) {
        Indices index = random_indices(rows, kVocab, 1);
        for (size_t t = 0; t < index.size(); t += static_cast<size_t>(share)) index[t] = 13;
        const Matrix dout = random_matrix(rows, cols, 2, dtype());
        check([&](Harness& h) -> Checks {
            return {{gradient(h, index, h.input(dout, dtype()), Matrix(kVocab, cols), false),
                     reference::embedding_backward(kVocab, index, dout), "dtable",
                     reduction(DType::f32, rows)}};
        });
    });
}

// [2,T], as specified by op::SortIds.
Matrix sorted_ids(const Indices& index) {
    Indices tokens(index.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int32_t a, int32_t b) { return index[size_t(a)] < index[size_t(b)]; });
    const auto count = static_cast<int64_t>(index.size());
    Matrix order(2, count);
    for (int64_t i = 0; i < count; ++i) {
        order(0, i) = index[static_cast<size_t>(tokens[static_cast<size_t>(i)])];
        order(1, i) = tokens[static_cast<size_t>(i)];
    }
    return order;
}

// One id, ids of one and of four radix digits, partly filled tiles; equal ids keep their order.
TEST_P(EmbeddingTest, SortsIds) {
    sweep(std::tuple{Ints{1, 7, 1024, 2500}, Ints{1, 20, 256, 66000, 20000000}},
          [&](int64_t count, int64_t limit) {
              Indices index = random_indices(count, limit, 1);
              for (size_t t = 0; t < index.size(); t += 3) index[t] = static_cast<int32_t>(limit - 1);
              check([&](Harness& h) -> Checks {
                  const Tensor order = h.output(DType::i32, {2, count});
                  h.call(op::SortIds{.order = order, .index = h.input(index), .limit = limit});
                  return {{order, sorted_ids(index), "order"}};
              });
          });
}

// A table in `count` parts of nearly equal size: part p has the rows from first(p) on.
struct Parts {
    int64_t count;
    int64_t first(int64_t p) const { return p * kVocab / count; }
    int64_t rows(int64_t p) const { return first(p + 1) - first(p); }
    // Ids relative to part p: ids of other parts are the number of its rows.
    Indices ids(const Indices& index, int64_t p) const {
        Indices result;
        for (const int32_t id : index) {
            const int64_t own = id - first(p);
            result.push_back(static_cast<int32_t>(own >= 0 && own < rows(p) ? own : rows(p)));
        }
        return result;
    }
};

// The parts' lookups add up to the lookup in the whole table: each row is found in one part, the others return
// 0. The first part has the positions' table.
TEST_P(EmbeddingTest, ForwardSharded) {
    sweep(std::tuple{Ints{2, 3, kVocab}, Ints{1, 33, 130}, Ints{48, 33}, kBoth}, [&](int64_t count,
                                                                                     int64_t rows,
                                                                                     int64_t cols,
                                                                                     bool positions) {
        const Parts parts{count};
        const Indices index = random_indices(rows, kVocab, 1), position = random_indices(rows, kPositions, 2);
        const Matrix table = random_matrix(kVocab, cols, 3, dtype()),
                     offsets = random_matrix(kPositions, cols, 4, dtype());
        const auto look_up = [&](Harness& h, const Indices& ids, const Matrix& rows_of_part, int64_t part) {
            op::EmbeddingForward a{.out = h.output(dtype(), {rows, cols}),
                                   .index = h.input(ids),
                                   .table = h.input(rows_of_part, dtype()),
                                   .others = part >= 0};
            if (positions && part <= 0) {
                a.position = h.input(position);
                a.position_table = h.input(offsets, dtype());
            }
            h.call(a);
            return h.read(a.out);
        };
        const Outputs out = run([&](Harness& h) -> Outputs {
            Outputs results{look_up(h, index, table, -1)};
            for (int64_t p = 0; p < count; ++p)
                results.push_back(look_up(h, parts.ids(index, p),
                                          reference::row_block(table, parts.first(p), parts.rows(p)), p));
            return results;
        });
        Matrix sum(rows, cols);
        for (size_t p = 1; p < out.size(); ++p) sum = reference::plus(sum, out[p]);
        EXPECT_EQ(rounded(sum, dtype()).values, out[0].values);
    });
}

// Each part's gradient has the bits of its rows in the whole table's gradient. Runs of equal tokens are
// short: segments would begin elsewhere in a part.
TEST_P(EmbeddingTest, BackwardSharded) {
    sweep(std::tuple{Ints{2, 3, kVocab}, Ints{1, 33, 130}, Ints{48, 33}, kBoth},
          [&](int64_t count, int64_t rows, int64_t cols, bool accumulate) {
              const Parts parts{count};
              const Indices index = random_indices(rows, kVocab, 1);
              const Matrix dout = random_matrix(rows, cols, 2, dtype()),
                           before = random_matrix(kVocab, cols, 3, DType::f32);
              const auto add = [&](Harness& h, const Matrix& to, const Indices& ids, bool whole) {
                  return h.read(gradient(h, ids, h.input(dout, dtype()), to, accumulate, !whole));
              };
              const Outputs out = run([&](Harness& h) -> Outputs {
                  Outputs results{add(h, before, index, true)};
                  for (int64_t p = 0; p < count; ++p)
                      results.push_back(add(h, reference::row_block(before, parts.first(p), parts.rows(p)),
                                            parts.ids(index, p), false));
                  return results;
              });
              for (int64_t p = 0; p < count; ++p)
                  expect_same_bits(out[static_cast<size_t>(p) + 1],
                                   reference::row_block(out[0], parts.first(p), parts.rows(p)),
                                   fmt::format("rows of part {}", p));
          });
}

// Tokens of other parts are sorted last, in order; all tokens may be of other parts.
TEST_P(EmbeddingTest, SortsOtherShardsLast) {
    const int64_t count = 1100;
    sweep(std::tuple{Ints{1, 255, 256, 66000}, Ints{3, 1}}, [&](int64_t limit, int64_t every) {
        Indices index = random_indices(count, limit, 1);
        for (size_t t = 0; t < index.size(); t += static_cast<size_t>(every))
            index[t] = static_cast<int32_t>(limit);
        check([&](Harness& h) -> Checks {
            const Tensor order = h.output(DType::i32, {2, count});
            h.call(op::SortIds{.order = order, .index = h.input(index), .limit = limit, .others = true});
            return {{order, sorted_ids(index), "order"}};
        });
    });
}

}  // namespace speedrun::testing::embedding_test
