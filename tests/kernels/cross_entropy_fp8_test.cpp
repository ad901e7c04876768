// FP8 gradients of logits: bit for bit the gradients of the logits' type, rounded, as a matrix and
// transposed.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::cross_entropy_fp8_test {

SPEEDRUN_OP_TEST(CrossEntropyFp8Test);

struct Problem {
    int64_t vocabulary, padded;        // the last columns are padding
    std::vector<double> weights = {};  // empty: one target
    Softcap softcap = {};
    float scale = 0.0f;
    int64_t rows = 144;  // one and an eighth of the groups that CUDA transposes together
};

// FP8 gradients and their transpose, from the loss itself (fused) or from op::Quantize. `loss` enqueues the
// loss with dlogits, transposed and scale.
template <class Loss>
Outputs gradients(Harness& h, bool fused, const Tensor& logits, const Tensor& scale, const Loss& loss) {
    constexpr int64_t kMargin = 16;  // row stride of the transposed matrix exceeds its width
    const int64_t rows = logits.rows(), cols = logits.cols();
    const Tensor eight = h.output(DType::e5m2, {rows, cols}),
                 transposed = h.output(DType::e5m2, {cols, rows + 2 * kMargin}).column_slice(kMargin, rows);
    if (fused) {
        loss(eight, transposed, scale);
    } else {
        const Tensor dlogits = h.output(logits.dtype, {rows, cols});
        loss(dlogits, Tensor{}, Tensor{});
        h.call(op::Quantize{.out = eight, .transposed = transposed, .x = dlogits, .scale = scale});
    }
    return {h.read(eight), h.read(transposed)};
}

struct Inputs {
    Tensor logits, targets, weights, scale;
};

// Rows with equal targets, rows without targets, and targets in edge columns.
Inputs inputs_of(Harness& h, const Problem& p, DType dtype) {
    const int64_t num_targets = std::max<int64_t>(1, static_cast<int64_t>(p.weights.size()));
    Indices ids = random_indices(num_targets * p.rows, p.vocabulary, 2);
    for (size_t i = 0; i < ids.size(); ++i) {
        const size_t row = i % static_cast<size_t>(p.rows);
        if (row % 7 == 3 || i % 13 == 1) ids[i] = -1;
        if (row % 5 == 4) ids[i] = static_cast<int32_t>(p.vocabulary) - 1;
    }
    Inputs in{.logits = h.input(random_matrix(p.rows, p.padded, 1, dtype, 4.0), dtype),
              .targets = h.input(ids),
              .weights = {},
              .scale = h.input(Matrix(1, 1, p.scale), DType::f32, {1})};
    if (p.weights.empty()) return in;
    Matrix row(1, num_targets);
    row.values = p.weights;
    in.targets = in.targets.reshaped({num_targets, p.rows});
    in.weights = h.input(row, DType::f32, {num_targets});
    return in;
}

constexpr float kGradientScale = 0.125f;

// Losses, gradients.
Outputs whole(Harness& h, const Problem& p, DType dtype, bool fused) {
    const Inputs in = inputs_of(h, p, dtype);
    const Tensor losses = h.output(DType::f32, {p.rows});
    const Outputs dlogits = gradients(h, fused, in.logits, in.scale,
                                      [&](const Tensor& to, const Tensor& transposed, const Tensor& scale) {
                                          h.call(op::CrossEntropy{.losses = losses,
                                                                  .dlogits = to,
                                                                  .transposed = transposed,
                                                                  .scale = scale,
                                                                  .logits = in.logits,
                                                                  .targets = in.targets,
                                                                  .weights = in.weights,
                                                                  .vocab_size = p.vocabulary,
                                                                  .softcap = p.softcap,
                                                                  .gradient_scale = kGradientScale});
                                      });
    return {h.read(losses), dlogits[0], dlogits[1]};
}

// The columns are the second half of the ids; the same logits serve as the first half.
Outputs part(Harness& h, const Problem& p, DType dtype, bool fused) {
    const Inputs in = inputs_of(h, p, dtype);
    const int64_t first = p.vocabulary / 2, kept = p.vocabulary - first;
    const Tensor losses = h.output(DType::f32, {p.rows}), parts = h.output(DType::f32, {2 * p.rows, 2});
    for (const int64_t at : {int64_t{0}, first}) {
        h.call(op::CrossEntropyPart{.part = parts.row_slice(at == 0 ? 0 : p.rows, p.rows),
                                    .logits = in.logits,
                                    .targets = in.targets,
                                    .weights = in.weights,
                                    .first = at,
                                    .vocab_size = at == 0 ? first : kept,
                                    .whole_vocab_size = p.vocabulary,
                                    .softcap = p.softcap});
    }
    const Outputs dlogits = gradients(h, fused, in.logits, in.scale,
                                      [&](const Tensor& to, const Tensor& transposed, const Tensor& scale) {
                                          h.call(op::CrossEntropyOfParts{.losses = losses,
                                                                         .dlogits = to,
                                                                         .transposed = transposed,
                                                                         .scale = scale,
                                                                         .logits = in.logits,
                                                                         .parts = parts,
                                                                         .targets = in.targets,
                                                                         .weights = in.weights,
                                                                         .first = first,
                                                                         .vocab_size = kept,
                                                                         .whole_vocab_size = p.vocabulary,
                                                                         .softcap = p.softcap,
                                                                         .gradient_scale = kGradientScale});
                                      });
    return {h.read(losses), dlogits[0], dlogits[1]};
}

// Rows of several vectors, and of several rounds of a block of threads, with and without padding.
std::vector<Problem> problems() {
    std::vector<Problem> all;
    for (const Softcap& softcap : {Softcap{}, Softcap{15.0f}, Softcap{60.0f}, Softcap{11.5f, 5.0f, 15.0f}}) {
        for (const auto& weights : {std::vector<double>{}, {1, 0.5, 0.25, 0.125}}) {
            all.push_back({16, 16, weights, softcap, 0.125f / 448});
            all.push_back({497, 512, weights, softcap, 0.125f / 448});
            all.push_back({9003, 9024, weights, softcap, 1e-4f, 16});
        }
    }
    all.push_back({497, 512, {}, {15.0f}, 0.0f});   // zeros
    all.push_back({497, 512, {}, {15.0f}, 1e-9f});  // all beyond the largest finite value
    return all;
}

TEST_P(CrossEntropyFp8Test, EqualsLossThenQuantisation) {
    for (const Problem& p : problems()) {
        SCOPED_TRACE(fmt::format("V={} of {} K={} softcap={} scale={}", p.vocabulary, p.padded,
                                 p.weights.size(), p.softcap.cap, p.scale));
        for (const auto& compute : {whole, part}) {
            const Outputs fused = run([&](Harness&h) { return compute(h, p, dtype(), true); }),
                          apart = run([&](Harness&h) { return compute(h, p, dtype(), false); }, {1});
            expect_same_bits(fused[0], apart[0], "losses");
            expect_same_bits(fused[1], apart[1], "dlogits");
            expect_same_bits(fused[2], apart[2], "transposed");
            EXPECT_EQ(reference::norm(fused[1]) > 0, p.scale > 0);
        }
    }
}

}  // namespace speedrun::testing::cross_entropy_fp8_test
