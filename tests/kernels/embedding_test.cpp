#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

SPEEDRUN_OP_TEST(EmbeddingTest);

constexpr int64_t kVocab = 20;  // fewer rows than most token counts: gradients of equal tokens must add up
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
                    h.ops().embedding_forward(y, h.input(index), h.input(table, dtype()),
                                              positions ? h.input(position) : Tensor(),
                                              positions ? h.input(offsets, dtype()) : Tensor(), h.stream());
                    return {h.read(y)};
                });
                const Matrix expected = reference::embedding_forward(index, table, position, offsets);
                // One addition at most, rounded once.
                expect_close(out[0], expected, few_operations(dtype()), "out");
                if (!positions) expect_same_bits(out[0], expected, "a copy of rows");
            }
        }
    }
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
                    const Tensor dtable =
                        accumulate ? h.inout(before, DType::f32) : h.output(DType::f32, {kVocab, cols});
                    h.ops().embedding_backward(dtable, h.input(index), h.input(dout, dtype()), accumulate,
                                               h.stream());
                    return {h.read(dtable)};
                });
                Matrix expected = reference::embedding_backward(kVocab, index, dout);
                if (accumulate) expected = reference::plus(expected, before);
                expect_close(out[0], expected, reduction(DType::f32, rows), "dtable");
            }
        }
    }
}

TEST_P(EmbeddingTest, ShapeErrors) {
    expect_error(
        [&](Harness& h) {
            h.ops().embedding_forward(h.output(dtype(), {5, 48}), h.input(Indices(4)),
                                      h.output(dtype(), {9, 48}), {}, {}, h.stream());
        },
        {"index", "5", "4"});
    expect_error(
        [&](Harness& h) {
            h.ops().embedding_forward(h.output(dtype(), {5, 48}), h.input(Indices(5)),
                                      h.output(dtype(), {9, 32}), {}, {}, h.stream());
        },
        {"table", "48", "32"});
    expect_error(
        [&](Harness& h) {
            h.ops().embedding_backward(h.output(DType::bf16, {9, 48}), h.input(Indices(5)),
                                       h.output(dtype(), {5, 48}), false, h.stream());
        },
        {"dtable", "f32", "bf16[9,48]"});
}

}  // namespace
}  // namespace speedrun::testing
