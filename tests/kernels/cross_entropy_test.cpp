// Covers: kernels/ops/loss.cpp
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace cross_entropy_test {

SPEEDRUN_OP_TEST(CrossEntropyTest);

struct Vocabulary {
    int64_t size, padded;
};
constexpr Vocabulary kVocabularies[] = {{257, 272}, {1000, 1000}, {16, 16}, {5, 7}};

// The padding columns hold logits that would win every softmax.
Matrix random_logits(int64_t rows, Vocabulary vocabulary, DType dtype) {
    Matrix logits = random_matrix(rows, vocabulary.padded, 1, dtype, 6.0);
    for (int64_t t = 0; t < rows; ++t) {
        for (int64_t v = vocabulary.size; v < vocabulary.padded; ++v) logits(t, v) = 8192.0;
    }
    return logits;
}

// The loss is a difference of values up to 30, each with a rounding error. A vectorized tanh adds an error of 2e-7
// times the softcap (15), which also shifts each probability by that relative error.
constexpr Tolerance kLossTolerance{16 * kF32Roundoff, 0, 1e-5};
// None, the standard form, and 23·σ((z + 5)/7.5).
constexpr Softcap kCaps[] = {{}, {15.0f}, {11.5f, 5.0f, 15.0f}};

Tolerance gradient_tolerance(DType dtype, float gradient_scale) {
    Tolerance tolerance{dtype == DType::bf16 ? kBf16Ulp : 2e-5, 0, 2e-6};
    tolerance.absolute *= static_cast<double>(gradient_scale);  // the target's p − 1 with p near 1
    return tolerance;
}

enum class Gradient { absent, separate, in_place };

TEST_P(CrossEntropyTest, LossesAndGradients) {
    for (const Vocabulary& vocabulary : kVocabularies) {
        for (int64_t rows : {1, 7, 33, 130}) {
            for (const Softcap& softcap : kCaps) {
                for (Gradient mode : {Gradient::absent, Gradient::separate, Gradient::in_place}) {
                    SCOPED_TRACE(fmt::format("V={} of {} T={} softcap={} dlogits={}", vocabulary.size,
                                             vocabulary.padded, rows, softcap.cap, static_cast<int>(mode)));
                    const float gradient_scale = 0.125f;
                    const Matrix logits = random_logits(rows, vocabulary, dtype());
                    Indices targets = random_indices(rows, vocabulary.size, 2);
                    for (size_t t = 2; t < targets.size(); t += 3) targets[t] = -1;
                    const Outputs out = run([&](Harness& h) -> Outputs {
                        const Tensor losses = h.output(DType::f32, {rows});
                        const Tensor in =
                            mode == Gradient::in_place ? h.inout(logits, dtype()) : h.input(logits, dtype());
                        Tensor dlogits;
                        if (mode == Gradient::in_place) dlogits = in;
                        if (mode == Gradient::separate)
                            dlogits = h.output(dtype(), {rows, vocabulary.padded});
                        h.call(op::CrossEntropy{.losses = losses,
                                                .dlogits = dlogits,
                                                .logits = in,
                                                .targets = h.input(targets),
                                                .vocab_size = vocabulary.size,
                                                .softcap = softcap,
                                                .gradient_scale = gradient_scale});
                        return {h.read(losses), mode == Gradient::absent ? Matrix() : h.read(dlogits)};
                    });
                    expect_close(out[0],
                                 reference::cross_entropy_losses(logits, targets, vocabulary.size, softcap),
                                 kLossTolerance, "losses");
                    if (mode == Gradient::absent) continue;
                    expect_close(out[1],
                                 reference::cross_entropy_dlogits(logits, targets, vocabulary.size, softcap,
                                                                  gradient_scale),
                                 gradient_tolerance(dtype(), gradient_scale), "dlogits");
                    for (int64_t t = 0; t < rows; ++t) {
                        for (int64_t v = 0; v < vocabulary.padded; ++v) {
                            if (v >= vocabulary.size || targets[static_cast<size_t>(t)] < 0) {
                                ASSERT_EQ(out[1](t, v), 0.0) << "padding or ignored row: " << t << "," << v;
                            }
                        }
                    }
                }
            }
        }
    }
}

// K targets per row: some are ignored, some coincide, some rows have none; they are columns of a wider
// tensor.
TEST_P(CrossEntropyTest, SeveralTargets) {
    constexpr int64_t kColumns = 3, kRows = 33;  // target columns before the rows
    const float gradient_scale = 0.125f;
    for (const Vocabulary& vocabulary : kVocabularies) {
        for (const std::vector<double>& weights :
             {std::vector<double>{0.75}, {1, 0.5, 0.25}, {1, 0}, std::vector<double>(8, 0.5)}) {
            for (const Softcap& softcap : kCaps) {
                for (const bool in_place : {false, true}) {
                    SCOPED_TRACE(fmt::format("V={} of {} K={} softcap={} in place {}", vocabulary.size,
                                             vocabulary.padded, weights.size(), softcap.cap, in_place));
                    const Matrix logits = random_logits(kRows, vocabulary, dtype());
                    std::vector<Indices> targets;
                    Indices flat;
                    const auto num_targets = static_cast<int64_t>(weights.size());
                    for (int64_t k = 0; k < num_targets; ++k) {
                        Indices row = random_indices(kRows, vocabulary.size, static_cast<uint64_t>(k) + 2);
                        for (size_t t = 0; t < row.size(); ++t) {
                            if (t % 5 == 0 && k > 0) row[t] = targets[0][t];
                            if (t % 4 == 1 && k % 2 == 1) row[t] = -1;
                            if (t % 16 == 7) row[t] = -1;
                        }
                        flat.insert(flat.end(), kColumns, 99999);  // not a valid id
                        flat.insert(flat.end(), row.begin(), row.end());
                        targets.push_back(std::move(row));
                    }
                    Matrix weight_row(1, num_targets);
                    for (int64_t k = 0; k < num_targets; ++k) weight_row[k] = weights[static_cast<size_t>(k)];
                    const Outputs out = run([&](Harness& h) -> Outputs {
                        const Tensor losses = h.output(DType::f32, {kRows});
                        const Tensor in = in_place ? h.inout(logits, dtype()) : h.input(logits, dtype());
                        const Tensor dlogits = in_place ? in : h.output(dtype(), {kRows, vocabulary.padded});
                        h.call(op::CrossEntropy{
                            .losses = losses,
                            .dlogits = dlogits,
                            .logits = in,
                            .targets = h.input(flat)
                                           .reshaped({num_targets, kColumns + kRows})
                                           .column_slice(kColumns, kRows),
                            .weights = h.input(weight_row, DType::f32).reshaped({num_targets}),
                            .vocab_size = vocabulary.size,
                            .softcap = softcap,
                            .gradient_scale = gradient_scale});
                        return {h.read(losses), h.read(dlogits)};
                    });
                    double sum = 0;
                    for (const double w : weights) sum += w;
                    Tolerance losses = kLossTolerance,
                              gradients = gradient_tolerance(dtype(), gradient_scale);
                    losses.absolute *= std::max(1.0, sum);  // each target's loss, times its weight
                    gradients.absolute *= std::max(1.0, sum);
                    expect_close(out[0],
                                 reference::weighted_cross_entropy_losses(logits, targets, weights,
                                                                          vocabulary.size, softcap),
                                 losses, "losses");
                    expect_close(out[1],
                                 reference::weighted_cross_entropy_dlogits(
                                     logits, targets, weights, vocabulary.size, softcap, gradient_scale),
                                 gradients, "dlogits");
                }
            }
        }
    }
}

// A weight of 1 for one target gives the plain loss, bit for bit.
TEST_P(CrossEntropyTest, OneTargetOfWeightOneIsThePlainLoss) {
    const Vocabulary vocabulary{257, 272};
    const Matrix logits = random_logits(33, vocabulary, dtype());
    Indices targets = random_indices(33, vocabulary.size, 2);
    targets[5] = -1;
    const auto compute = [&](bool weighted) {
        return run([&](Harness& h) -> Outputs {
            const Tensor losses = h.output(DType::f32, {33}),
                         dlogits = h.output(dtype(), {33, vocabulary.padded});
            const Tensor ids = h.input(targets);
            op::CrossEntropy arguments{.losses = losses,
                                       .dlogits = dlogits,
                                       .logits = h.input(logits, dtype()),
                                       .targets = ids,
                                       .vocab_size = vocabulary.size,
                                       .softcap = {15.0f},
                                       .gradient_scale = 0.1f};
            if (weighted) {
                arguments.targets = ids.reshaped({1, 33});
                Matrix one(1, 1);
                one[0] = 1;
                arguments.weights = h.input(one, DType::f32).reshaped({1});
            }
            h.call(arguments);
            return {h.read(losses), h.read(dlogits)};
        });
    };
    const Outputs plain = compute(false), weighted = compute(true);
    EXPECT_EQ(plain[0].values, weighted[0].values);
    // The GPU kernel rounds the target's element twice if there is one target.
    expect_close(weighted[1], plain[1], gradient_tolerance(dtype(), 0.1f), "dlogits");
}

TEST_P(CrossEntropyTest, AllIgnored) {
    const Vocabulary vocabulary{257, 272};
    const Matrix logits = random_logits(7, vocabulary, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor losses = h.output(DType::f32, {7}), dlogits = h.output(dtype(), {7, 272});
        h.call(op::CrossEntropy{.losses = losses,
                                .dlogits = dlogits,
                                .logits = h.input(logits, dtype()),
                                .targets = h.input(Indices(7, -1)),
                                .vocab_size = 257,
                                .softcap = {15.0f}});
        return {h.read(losses), h.read(dlogits)};
    });
    EXPECT_EQ(reference::norm(out[0]), 0.0);
    EXPECT_EQ(reference::norm(out[1]), 0.0);
}

// Logits of ±1e4: exponentials of the logits themselves would overflow.
TEST_P(CrossEntropyTest, LargeLogits) {
    Matrix logits = rounded(reference::times(random_matrix(7, 48, 1, DType::f32), 1e4), dtype());
    const Indices targets = random_indices(7, 48, 2);
    for (const Softcap& softcap : kCaps) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor losses = h.output(DType::f32, {7}), dlogits = h.output(dtype(), {7, 48});
            h.call(op::CrossEntropy{.losses = losses,
                                    .dlogits = dlogits,
                                    .logits = h.input(logits, dtype()),
                                    .targets = h.input(targets),
                                    .vocab_size = 48,
                                    .softcap = softcap});
            return {h.read(losses), h.read(dlogits)};
        });
        expect_close(out[0], reference::cross_entropy_losses(logits, targets, 48, softcap), kLossTolerance,
                     "losses");
        expect_close(out[1], reference::cross_entropy_dlogits(logits, targets, 48, softcap, 1.0f),
                     gradient_tolerance(dtype(), 1.0f), "dlogits");
    }
}

// NaN must reach the loss: it reveals a diverged model.
TEST_P(CrossEntropyTest, NanStaysNan) {
    for (int64_t column : {0, 31, 47}) {
        Matrix logits = random_matrix(2, 48, 1, dtype());
        logits(1, column) = std::nan("");
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor losses = h.output(DType::f32, {2});
            h.call(op::CrossEntropy{.losses = losses,
                                    .logits = h.input(logits, dtype()),
                                    .targets = h.input(Indices{3, 5}),
                                    .vocab_size = 48,
                                    .softcap = {15.0f}});
            return {h.read(losses)};
        });
        EXPECT_TRUE(std::isfinite(out[0][0]));
        EXPECT_TRUE(std::isnan(out[0][1])) << "NaN in column " << column;
    }
}

}  // namespace cross_entropy_test
}  // namespace speedrun::testing
