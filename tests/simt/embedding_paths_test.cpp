// Paths of the embedding kernels that tests/kernels does not reach: the order of their sums, and ids outside
// the table (which the host cannot check, so they do not throw).
#include <algorithm>

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

SPEEDRUN_OP_TEST(EmbeddingPathsTest);

// Σ over each id's tokens in the order of kernels/cuda/ops/embedding.cu, to the bit: in order of t, except
// that a whole segment of sorted tokens with one id enters as a separate sum.
Matrix embedding_sums(const Indices& ids, const Matrix& dout, int64_t vocab, float before) {
    std::vector<size_t> tokens;
    for (size_t t = 0; t < ids.size(); ++t) {
        if (ids[t] >= 0 && ids[t] < vocab) tokens.push_back(t);
    }
    std::stable_sort(tokens.begin(), tokens.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    const auto segment = static_cast<size_t>(sizes::kEmbeddingSegment);
    const int64_t cols = dout.cols;
    std::vector<float> sums(static_cast<size_t>(vocab * cols), before);
    for (int64_t c = 0; c < cols; ++c) {
        const auto row = [&](size_t place) {
            return static_cast<float>(dout(static_cast<int64_t>(tokens[place]), c));
        };
        for (size_t place = 0; place < tokens.size();) {
            const int32_t id = ids[tokens[place]];
            float& sum = sums[static_cast<size_t>(id * cols + c)];
            const size_t end = place + segment;
            if (place % segment == 0 && end <= tokens.size() && ids[tokens[end - 1]] == id) {
                float partial = 0.0f;
                for (; place < end; ++place) partial += row(place);
                sum += partial;
            } else {
                sum += row(place++);
            }
        }
    }
    Matrix result(vocab, cols);
    result.values.assign(sums.begin(), sums.end());
    return result;
}

// Three tiles of tokens, ids of three digits, one id for a third of all tokens: the ends of its run are
// inside segments. Ids outside the table are skipped.
TEST_P(EmbeddingPathsTest, BackwardAddsInOrder) {
    const int64_t rows = 2500, cols = 24, vocab = 66000;
    Indices index = random_indices(rows, vocab, 1);
    for (size_t t = 0; t < index.size(); ++t) {
        if (t % 3 == 0) index[t] = 65999;
        if (t % 7 == 0) index[t] = static_cast<int32_t>(t % 5 * 256);
    }
    const Matrix dout = random_matrix(rows, cols, 2, dtype());
    Indices damaged = index;
    damaged[10] = -1;
    damaged[11] = static_cast<int32_t>(vocab);
    damaged[12] = 0x7fffffff;
    Indices of_a_part = index;  // half of all tokens are another rank's: many whole segments
    for (size_t t = 0; t < index.size(); t += 2) of_a_part[t] = static_cast<int32_t>(vocab);
    for (bool accumulate : {false, true}) {
        for (const Indices& ids : {index, damaged, of_a_part, Indices(static_cast<size_t>(rows), 9)}) {
            const bool others = ids == of_a_part;
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor dtable = accumulate ? h.inout(Matrix(vocab, cols, 0.5), DType::f32)
                                                 : h.output(DType::f32, {vocab, cols});
                const Tensor order = h.output(DType::i32, {2, rows});
                h.call(op::SortIds{.order = order, .index = h.input(ids), .limit = vocab, .others = others});
                h.call(op::EmbeddingBackward{.dtable = dtable,
                                             .order = order,
                                             .dout = h.input(dout, dtype()),
                                             .accumulate = accumulate,
                                             .others = others});
                return {h.read(dtable)};
            });
            expect_same_bits(out[0], embedding_sums(ids, dout, vocab, accumulate ? 0.5f : 0.0f), "dtable");
        }
    }
}

TEST_P(EmbeddingPathsTest, ForwardOutsideTableIsNan) {
    const Matrix table = random_matrix(9, 48, 1, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.output(dtype(), {4, 48});
        h.call(op::EmbeddingForward{
            .out = y, .index = h.input(Indices{-1, 3, 9, 0x7fffffff}), .table = h.input(table, dtype())});
        return {h.read(y)};
    });
    for (int64_t t : {0, 2, 3}) expect_all_nan(reference::row_block(out[0], t, 1), "row outside");
    expect_same_bits(reference::row_block(out[0], 1, 1), reference::row_block(table, 3, 1), "row inside");
}

// Sign rows outside the table give NaN in a lookup; a gradient does not read them.
TEST_P(EmbeddingPathsTest, SignRowsOutsideTableAreNan) {
    const Matrix table = random_matrix(9, 48, 1, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.output(dtype(), {4, 48}), dtable = h.output(DType::f32, {9, 48}),
                     order = h.output(DType::i32, {2, 4});
        const op::RowSigns signs{.bits = h.input(Indices(2 * 5)).reshaped({5, 2}),
                                 .row = h.input(Indices{-1, 4, 5, 0x7fffffff})};
        const Tensor index = h.input(Indices{0, 3, 5, 3});
        h.call(
            op::EmbeddingForward{.out = y, .index = index, .table = h.input(table, dtype()), .signs = signs});
        h.call(op::SortIds{.order = order, .index = index, .limit = 9});
        h.call(op::EmbeddingBackward{.dtable = dtable,
                                     .order = order,
                                     .dout = h.input(reference::row_block(table, 0, 4), dtype()),
                                     .signs = signs,
                                     .accumulate = false});
        return {h.read(y), h.read(dtable)};
    });
    for (int64_t t : {0, 2, 3}) expect_all_nan(reference::row_block(out[0], t, 1), "signs outside");
    expect_same_bits(reference::row_block(out[0], 1, 1), reference::row_block(table, 3, 1), "signs inside");
    expect_same_bits(reference::row_block(out[1], 5, 1), reference::row_block(table, 2, 1), "gradient");
}

// Only the id after the last row marks a row of another rank.
TEST_P(EmbeddingPathsTest, ForwardOfOtherRanksIsPositionOnly) {
    const Matrix table = random_matrix(9, 48, 1, dtype()), positions = random_matrix(5, 48, 2, dtype());
    for (const bool placed : {false, true}) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.output(dtype(), {5, 48});
            h.call(op::EmbeddingForward{.out = y,
                                        .index = h.input(Indices{9, 10, -1, 0x7fffffff, 9}),
                                        .table = h.input(table, dtype()),
                                        .position = placed ? h.input(Indices{3, 0, 0, 0, 5}) : Tensor(),
                                        .position_table = placed ? h.input(positions, dtype()) : Tensor(),
                                        .others = true});
            return {h.read(y)};
        });
        for (int64_t t : {1, 2, 3}) expect_all_nan(reference::row_block(out[0], t, 1), "row outside");
        expect_same_bits(reference::row_block(out[0], 0, 1),
                         placed ? reference::row_block(positions, 3, 1) : Matrix(1, 48), "row of others");
        if (placed) expect_all_nan(reference::row_block(out[0], 4, 1), "position outside");
    }
}

}  // namespace
}  // namespace speedrun::testing
