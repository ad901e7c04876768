// Covers: kernels/cuda/ops/sort_ids.cu
#include <algorithm>
#include <numeric>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace embedding_test {

SPEEDRUN_OP_TEST(EmbeddingTest);

constexpr int64_t kVocab = 20;  // below most token counts: gradients of equal tokens must be summed
constexpr int64_t kPositions = 40;

TEST_P(EmbeddingTest, Forward) {
    for (int64_t rows : {1, 7, 33, 130}) {
        for (int64_t cols : {48, 96, 33}) {
            for (bool positions : {false, true}) {
                SCOPED_TRACE(fmt::format("T={} C={} positions={}", rows, cols, positions));
                const Indices index = random_indices(rows, kVocab, 1),
                              position = random_indices(rows, kPositions, 2);
                const Matrix table = random_matrix(kVocab, cols, 3, dtype());
                const Matrix offsets = positions ? random_matrix(kPositions, cols, 4, dtype()) : Matrix();
                const Outputs out = run([&](Harness& h) -> Outputs {
                    const Tensor y = h.output(dtype(), {rows, cols});
                    h.call(op::EmbeddingForward{
                        .out = y,
                        .index = h.input(index),
                        .table = h.input(table, dtype()),
                        .position = positions ? h.input(position) : Tensor(),
                        .position_table = positions ? h.input(offsets, dtype()) : Tensor()});
                    return {h.read(y)};
                });
                const Matrix expected = reference::embedding_forward(index, table, position, offsets);
                // At most one addition, rounded once.
                expect_close(out[0], expected, few_operations(dtype()), "out");
                if (!positions) expect_same_bits(out[0], expected, "a copy of rows");
            }
        }
    }
}

// Gradient of a table that holds `before`, or nothing.
Matrix gradient(Harness& h, const Indices& ids, const Tensor& dout, const Matrix& before, bool accumulate,
                bool others = false) {
    const Tensor dtable = accumulate ? h.inout(before, DType::f32)
                                     : h.output(DType::f32, {before.rows, before.cols}),
                 order = h.output(DType::i32, {2, dout.rows()});
    h.call(op::SortIds{.order = order, .index = h.input(ids), .limit = before.rows, .others = others});
    h.call(op::EmbeddingBackward{
        .dtable = dtable, .order = order, .dout = dout, .accumulate = accumulate, .others = others});
    return h.read(dtable);
}

TEST_P(EmbeddingTest, Backward) {
    for (int64_t rows : {1, 7, 33, 130}) {
        for (int64_t cols : {48, 96, 33}) {
            for (bool accumulate : {false, true}) {
                SCOPED_TRACE(fmt::format("T={} C={} accumulate={}", rows, cols, accumulate));
                const Indices index = random_indices(rows, kVocab, 1);
                const Matrix dout = random_matrix(rows, cols, 2, dtype());
                const Matrix before = random_matrix(kVocab, cols, 3, DType::f32);
                const Outputs out = run([&](Harness& h) -> Outputs {
                    return {gradient(h, index, h.input(dout, dtype()), before, accumulate)};
                });
                Matrix expected = reference::embedding_backward(kVocab, index, dout);
                if (accumulate) expected = reference::plus(expected, before);
                expect_close(out[0], expected, reduction(DType::f32, rows), "dtable");
            }
        }
    }
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
    for (int64_t rows : {1, 33, 1003}) {
        for (int64_t cols : {48, 96, 33, 7}) {
            SCOPED_TRACE(fmt::format("T={} C={}", rows, cols));
            Indices index = random_indices(rows, kVocab, 1);
            for (size_t t = 0; t < index.size(); t += 2) index[t] = 13;
            const Indices position = random_indices(rows, kPositions, 2);
            const Matrix table = random_matrix(kVocab, cols, 3, dtype()),
                         offsets = random_matrix(kPositions, cols, 4, dtype()),
                         dout = random_matrix(rows, cols, 7, dtype());
            const RandomSigns signs(rows, cols);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor y = h.output(dtype(), {rows, cols}), z = h.output(dtype(), {rows, cols}),
                             dtable = h.output(DType::f32, {kVocab, cols}),
                             order = h.output(DType::i32, {2, rows});
                const Tensor ids = h.input(index);
                h.call(op::EmbeddingForward{
                    .out = y, .index = ids, .table = h.input(table, dtype()), .signs = signs.in(h)});
                h.call(op::EmbeddingForward{.out = z,
                                            .index = ids,
                                            .table = h.input(table, dtype()),
                                            .position = h.input(position),
                                            .position_table = h.input(offsets, dtype()),
                                            .signs = signs.in(h)});
                h.call(op::SortIds{.order = order, .index = ids, .limit = kVocab});
                h.call(op::EmbeddingBackward{.dtable = dtable,
                                             .order = order,
                                             .dout = h.input(dout, dtype()),
                                             .signs = signs.in(h),
                                             .accumulate = false});
                return {h.read(y), h.read(z), h.read(dtable)};
            });
            const Matrix looked_up = reference::with_signs(reference::embedding_forward(index, table, {}, {}),
                                                           signs.signs, signs.row);
            expect_same_bits(out[0], looked_up, "rows with signs");
            expect_close(out[1],
                         reference::plus(looked_up, reference::embedding_forward(position, offsets, {}, {})),
                         few_operations(dtype()), "rows with signs, and positions");
            const Matrix expected = reference::embedding_backward(
                kVocab, index, reference::with_signs(dout, signs.signs, signs.row));
            expect_close(out[2], expected, reduction(DType::f32, rows), "dtable");
        }
    }
}

// Half of the tokens, or all, have one id: runs long enough for a backend to sum them in segments.
TEST_P(EmbeddingTest, BackwardOfFrequentTokens) {
    const int64_t rows = 1003;
    for (int64_t cols : {48, 33}) {
        for (int64_t share : {2, 1}) {
            SCOPED_TRACE(fmt::format("C={} every {}", cols, share));
            Indices index = random_indices(rows, kVocab, 1);
            for (size_t t = 0; t < index.size(); t += static_cast<size_t>(share)) index[t] = 13;
            const Matrix dout = random_matrix(rows, cols, 2, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                return {gradient(h, index, h.input(dout, dtype()), Matrix(kVocab, cols), false)};
            });
            expect_close(out[0], reference::embedding_backward(kVocab, index, dout),
                         reduction(DType::f32, rows), "dtable");
        }
    }
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
    for (int64_t count : {1, 7, 1024, 2500}) {
        for (int64_t limit : {1, 20, 256, 66000, 20000000}) {
            SCOPED_TRACE(fmt::format("T={} limit={}", count, limit));
            Indices index = random_indices(count, limit, 1);
            for (size_t t = 0; t < index.size(); t += 3) index[t] = static_cast<int32_t>(limit - 1);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor order = h.output(DType::i32, {2, count});
                h.call(op::SortIds{.order = order, .index = h.input(index), .limit = limit});
                return {h.read(order)};
            });
            expect_same_bits(out[0], sorted_ids(index), "order");
        }
    }
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

struct Part {
    Matrix table;
    bool others, positions;
};

// The parts' lookups add up to the lookup in the whole table: each row comes from one part, the others return
// 0. The first part has the positions' table.
TEST_P(EmbeddingTest, ForwardInParts) {
    for (const Parts parts : {Parts{2}, Parts{3}, Parts{kVocab}}) {
        for (int64_t rows : {1, 33, 130}) {
            for (int64_t cols : {48, 33}) {
                for (bool positions : {false, true}) {
                    SCOPED_TRACE(
                        fmt::format("P={} T={} C={} positions={}", parts.count, rows, cols, positions));
                    const Indices index = random_indices(rows, kVocab, 1),
                                  position = random_indices(rows, kPositions, 2);
                    const Matrix table = random_matrix(kVocab, cols, 3, dtype()),
                                 offsets = random_matrix(kPositions, cols, 4, dtype());
                    const auto look_up = [&](Harness& h, const Indices& ids, const Part& part) {
                        const Tensor y = h.output(dtype(), {rows, cols});
                        h.call(op::EmbeddingForward{
                            .out = y,
                            .index = h.input(ids),
                            .table = h.input(part.table, dtype()),
                            .position = part.positions ? h.input(position) : Tensor(),
                            .position_table = part.positions ? h.input(offsets, dtype()) : Tensor(),
                            .others = part.others});
                        return h.read(y);
                    };
                    const Outputs out = run([&](Harness& h) -> Outputs {
                        Outputs results{
                            look_up(h, index, {.table = table, .others = false, .positions = positions})};
                        for (int64_t p = 0; p < parts.count; ++p) {
                            const Part part{
                                .table = reference::row_block(table, parts.first(p), parts.rows(p)),
                                .others = true,
                                .positions = positions && p == 0};
                            results.push_back(look_up(h, parts.ids(index, p), part));
                        }
                        return results;
                    });
                    Matrix sum(rows, cols);
                    for (size_t p = 1; p < out.size(); ++p) sum = reference::plus(sum, out[p]);
                    EXPECT_EQ(rounded(sum, dtype()).values, out[0].values);
                }
            }
        }
    }
}

// Each part's gradient has the bits of its rows in the whole table's gradient. Runs of equal tokens are
// short: segments would begin elsewhere in a part.
TEST_P(EmbeddingTest, BackwardInParts) {
    for (const Parts parts : {Parts{2}, Parts{3}, Parts{kVocab}}) {
        for (int64_t rows : {1, 33, 130}) {
            for (int64_t cols : {48, 33}) {
                for (bool accumulate : {false, true}) {
                    SCOPED_TRACE(
                        fmt::format("P={} T={} C={} accumulate={}", parts.count, rows, cols, accumulate));
                    const Indices index = random_indices(rows, kVocab, 1);
                    const Matrix dout = random_matrix(rows, cols, 2, dtype()),
                                 before = random_matrix(kVocab, cols, 3, DType::f32);
                    const auto add = [&](Harness& h, const Matrix& to, const Indices& ids, bool whole) {
                        return gradient(h, ids, h.input(dout, dtype()), to, accumulate, !whole);
                    };
                    const Outputs out = run([&](Harness& h) -> Outputs {
                        Outputs results{add(h, before, index, true)};
                        for (int64_t p = 0; p < parts.count; ++p) {
                            const Matrix own = reference::row_block(before, parts.first(p), parts.rows(p));
                            results.push_back(add(h, own, parts.ids(index, p), false));
                        }
                        return results;
                    });
                    for (int64_t p = 0; p < parts.count; ++p) {
                        expect_same_bits(out[static_cast<size_t>(p) + 1],
                                         reference::row_block(out[0], parts.first(p), parts.rows(p)),
                                         fmt::format("rows of part {}", p));
                    }
                }
            }
        }
    }
}

// Tokens of other parts are sorted last, in order; all tokens may be of other parts.
TEST_P(EmbeddingTest, SortsOthersLast) {
    const int64_t count = 1100;
    for (int64_t limit : {1, 255, 256, 66000}) {
        for (size_t every : {3, 1}) {
            SCOPED_TRACE(fmt::format("limit={} every {}", limit, every));
            Indices index = random_indices(count, limit, 1);
            for (size_t t = 0; t < index.size(); t += every) index[t] = static_cast<int32_t>(limit);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor order = h.output(DType::i32, {2, count});
                h.call(op::SortIds{.order = order, .index = h.input(index), .limit = limit, .others = true});
                return {h.read(order)};
            });
            expect_same_bits(out[0], sorted_ids(index), "order");
        }
    }
}

}  // namespace embedding_test
}  // namespace speedrun::testing
