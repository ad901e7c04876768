// Kernel paths that the sizes of tests/kernels do not reach: several tiles, blocks, passes or rounds, rows
// that exceed registers, and strided rows. Also targets outside the vocabulary, which the host cannot check,
// so they do not throw.
#include "tests/kernels/op_test_support.h"

#include <algorithm>

#include "kernels/cuda/blocks/kernel_sizes.h"

namespace speedrun::testing {
namespace {

SPEEDRUN_OP_TEST(KernelPathsTest);

constexpr Softcap kCaps[] = {{}, {15.0f}, {60.0f}, {11.5f, 5.0f, 15.0f}};

// Rows of several rounds of a block's 1024 threads, aligned and not; a softcap too large to replace the
// maximum.
TEST_P(KernelPathsTest, CrossEntropyOfLongRows) {
    for (int64_t padded : {9000, 2051}) {
        for (const Softcap& softcap : kCaps) {
            SCOPED_TRACE(fmt::format("V={} softcap={}", padded, softcap.cap));
            const Matrix logits = random_matrix(3, padded, 1, dtype(), 4.0);
            const Indices targets{static_cast<int32_t>(padded) - 4, -1, 0};
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor losses = h.output(DType::f32, {3}), dlogits = h.output(dtype(), {3, padded});
                h.call(op::CrossEntropy{.losses = losses,
                                        .dlogits = dlogits,
                                        .logits = h.input(logits, dtype()),
                                        .targets = h.input(targets),
                                        .vocab_size = padded - 3,
                                        .softcap = softcap,
                                        .gradient_scale = 0.125f});
                return {h.read(losses), h.read(dlogits)};
            });
            // Tolerance of cross_entropy_test.cpp: its tanh error scales with `softcap`.
            const double cap = std::max(15.0, static_cast<double>(softcap.cap)) / 15.0;
            expect_close(out[0], reference::cross_entropy_losses(logits, targets, padded - 3, softcap),
                         {16 * kF32Roundoff, 0, 1e-5 * cap}, "losses");
            expect_close(out[1],
                         reference::cross_entropy_dlogits(logits, targets, padded - 3, softcap, 0.125f),
                         {dtype() == DType::bf16 ? kBf16Ulp : 2e-5 * cap, 0, 0.125 * 2e-6}, "dlogits");
        }
    }
}

// Three targets in rows of several rounds: in the same chunk, in chunks that one thread stores, and two equal
// ones.
TEST_P(KernelPathsTest, CrossEntropyOfSeveralTargetsInLongRows) {
    constexpr int64_t kPadded = 9000;
    const std::vector<double> weights = {1, 0.5, 0.25};
    Matrix weight_row(1, 3);
    for (int64_t k = 0; k < 3; ++k) weight_row[k] = weights[static_cast<size_t>(k)];
    const std::vector<Indices> targets = {{0, 8992, 17, -1}, {1, 8996, 17, 5}, {8191, 4, 17, -1}};
    Indices flat;
    for (const Indices& row : targets) flat.insert(flat.end(), row.begin(), row.end());
    for (const Softcap& softcap : kCaps) {
        SCOPED_TRACE(softcap.cap);
        const Matrix logits = random_matrix(4, kPadded, 1, dtype(), 4.0);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor losses = h.output(DType::f32, {4}), dlogits = h.inout(logits, dtype());
            h.call(op::CrossEntropy{.losses = losses,
                                    .dlogits = dlogits,
                                    .logits = dlogits,
                                    .targets = h.input(flat).reshaped({3, 4}),
                                    .weights = h.input(weight_row, DType::f32).reshaped({3}),
                                    .vocab_size = kPadded - 3,
                                    .softcap = softcap,
                                    .gradient_scale = 0.125f});
            return {h.read(losses), h.read(dlogits)};
        });
        // The tolerances of CrossEntropyOfLongRows, times the sum of the weights.
        const double cap = 1.75 * std::max(15.0, static_cast<double>(softcap.cap)) / 15.0;
        expect_close(out[0],
                     reference::weighted_cross_entropy_losses(logits, targets, weights, kPadded - 3, softcap),
                     {16 * kF32Roundoff, 0, 1e-5 * cap}, "losses");
        expect_close(
            out[1],
            reference::weighted_cross_entropy_dlogits(logits, targets, weights, kPadded - 3, softcap, 0.125f),
            {dtype() == DType::bf16 ? kBf16Ulp : 2e-5 * cap, 0, 0.125 * 1.75 * 2e-6}, "dlogits");
    }
}

// Two parts of 9000 columns in rows of several rounds: targets in chunks that one thread stores, of both
// parts.
TEST_P(KernelPathsTest, CrossEntropyPartsOfLongRows) {
    constexpr int64_t kRows = 3, kWhole = 8997;
    const std::vector<double> weights = {1, 0.5};
    const Matrix weight_row = [&] {
        Matrix row(1, 2);
        row.values = weights;
        return row;
    }();
    const std::vector<Indices> targets = {{0, 8996, -1}, {4097, 4096, 7}};
    Indices flat;
    for (const Indices& row : targets) flat.insert(flat.end(), row.begin(), row.end());
    for (const int64_t first : {4096, 8992, 1029}) {
        for (const Softcap& softcap : kCaps) {
            SCOPED_TRACE(fmt::format("{} and {} softcap={}", first, kWhole - first, softcap.cap));
            const Matrix logits = random_matrix(kRows, kWhole, 1, dtype(), 4.0);
            const int64_t sizes[] = {first, kWhole - first};
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor parts = h.output(DType::f32, {2 * kRows, 2}),
                             ids = h.input(flat).reshaped({2, kRows}),
                             weight = h.input(weight_row, DType::f32, {2});
                Outputs results;
                Tensor columns[2];
                for (int64_t p = 0; p < 2; ++p) {
                    columns[p] = h.inout(reference::column_block(logits, p * first, sizes[p]), dtype());
                    h.call(op::CrossEntropyPart{.part = parts.row_slice(p * kRows, kRows),
                                                .logits = columns[p],
                                                .targets = ids,
                                                .weights = weight,
                                                .first = p * first,
                                                .vocab_size = sizes[p],
                                                .whole_vocab_size = kWhole,
                                                .softcap = softcap});
                }
                for (int64_t p = 0; p < 2; ++p) {
                    const Tensor losses = h.output(DType::f32, {kRows});
                    h.call(op::CrossEntropyOfParts{.losses = losses,
                                                   .dlogits = columns[p],
                                                   .logits = columns[p],
                                                   .parts = parts,
                                                   .targets = ids,
                                                   .weights = weight,
                                                   .first = p * first,
                                                   .vocab_size = sizes[p],
                                                   .whole_vocab_size = kWhole,
                                                   .softcap = softcap,
                                                   .gradient_scale = 0.125f});
                    results.push_back(h.read(losses));
                    results.push_back(h.read(columns[p]));
                }
                return results;
            });
            expect_same_bits(out[2], out[0], "losses of both parts");
            // The tolerances of CrossEntropyOfLongRows, times the sum of the weights.
            const double cap = 1.5 * std::max(15.0, static_cast<double>(softcap.cap)) / 15.0;
            expect_close(out[0],
                         reference::weighted_cross_entropy_losses(logits, targets, weights, kWhole, softcap),
                         {16 * kF32Roundoff, 0, 1e-5 * cap}, "losses");
            const Matrix dlogits =
                reference::weighted_cross_entropy_dlogits(logits, targets, weights, kWhole, softcap, 0.125f);
            for (int64_t p = 0; p < 2; ++p) {
                expect_close(out[static_cast<size_t>(2 * p + 1)],
                             reference::column_block(dlogits, p * first, sizes[p]),
                             {dtype() == DType::bf16 ? kBf16Ulp : 2e-5 * cap, 0, 0.125 * 1.5 * 2e-6},
                             "dlogits");
            }
        }
    }
}

// Every part sees a target outside the vocabulary, and none accesses a column for it.
TEST_P(KernelPathsTest, CrossEntropyOfPartsTargetOutsideIsNan) {
    const Matrix logits = random_matrix(4, 24, 1, dtype());
    const Indices targets{-2, 45, 3, 30};
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor parts = h.output(DType::f32, {8, 2}), in = h.input(logits, dtype()),
                     ids = h.input(targets);
        Outputs results;
        for (int64_t p = 0; p < 2; ++p)
            h.call(op::CrossEntropyPart{.part = parts.row_slice(p * 4, 4),
                                        .logits = in,
                                        .targets = ids,
                                        .first = 24 * p,
                                        .vocab_size = 24 - 3 * p,
                                        .whole_vocab_size = 45,
                                        .softcap = {15.0f}});
        for (int64_t p = 0; p < 2; ++p) {
            const Tensor losses = h.output(DType::f32, {4}), dlogits = h.output(dtype(), {4, 24});
            h.call(op::CrossEntropyOfParts{.losses = losses,
                                           .dlogits = dlogits,
                                           .logits = in,
                                           .parts = parts,
                                           .targets = ids,
                                           .first = 24 * p,
                                           .vocab_size = 24 - 3 * p,
                                           .whole_vocab_size = 45,
                                           .softcap = {15.0f}});
            results.push_back(h.read(losses));
            results.push_back(h.read(dlogits));
        }
        return results;
    });
    for (const size_t p : {0, 1}) {
        EXPECT_TRUE(std::isnan(out[2 * p][0]));
        EXPECT_TRUE(std::isnan(out[2 * p][1])) << "a padding column is no target";
        EXPECT_TRUE(std::isfinite(out[2 * p][2]) && std::isfinite(out[2 * p][3]));
        EXPECT_EQ(reference::norm(reference::row_block(out[2 * p + 1], 0, 2)), 0.0);
    }
}

TEST_P(KernelPathsTest, CrossEntropyTargetOutsideIsNan) {
    const Matrix logits = random_matrix(3, 48, 1, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor losses = h.output(DType::f32, {3}), dlogits = h.output(dtype(), {3, 48});
        h.call(op::CrossEntropy{.losses = losses,
                                .dlogits = dlogits,
                                .logits = h.input(logits, dtype()),
                                .targets = h.input(Indices{-2, 45, 3}),
                                .vocab_size = 45,
                                .softcap = {15.0f}});
        return {h.read(losses), h.read(dlogits)};
    });
    EXPECT_TRUE(std::isnan(out[0][0]));
    EXPECT_TRUE(std::isnan(out[0][1])) << "a padding column is no target";
    EXPECT_TRUE(std::isfinite(out[0][2]));
    EXPECT_EQ(reference::norm(reference::row_block(out[1], 0, 2)), 0.0);
}

TEST_P(KernelPathsTest, NormOfLongRows) {
    for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
        for (int64_t cols : {768, 1028, 1536, 2056, 2500, 1029}) {
            SCOPED_TRACE(fmt::format("{} C={}", static_cast<int>(kind), cols));
            const int64_t rows = 5;
            const Matrix x = random_matrix(rows, cols, 1, dtype()),
                         dy = random_matrix(rows, cols, 2, dtype());
            const Matrix gain = random_matrix(1, cols, 3, DType::f32);
            const auto expected = reference::norm_forward(x, gain, {}, kind);
            const auto gradients = reference::norm_backward(dy, x, gain, kind);
            const bool centered = kind == NormKind::layernorm;
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor y = h.output(dtype(), {rows, cols}), ds = h.output(dtype(), {rows, cols});
                const Tensor rstd = h.output(DType::f32, {rows}), dgain = h.output(DType::f32, {cols});
                const Tensor mean = centered ? h.output(DType::f32, {rows}) : Tensor();
                const Tensor in = h.input(x, dtype()), g = h.input(gain, DType::f32, {cols});
                h.call(op::NormForward{.y = y, .mean = mean, .rstd = rstd, .x = in, .gain = g, .kind = kind});
                h.call(op::NormBackward{.ds = ds,
                                        .dgain = dgain,
                                        .dy = h.input(dy, dtype()),
                                        .s = in,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .gain = g,
                                        .accumulate = false,
                                        .kind = kind});
                return {h.read(y), h.read(ds), h.read(dgain)};
            });
            expect_close(out[0], expected.y, reduction(dtype(), cols), "y");
            expect_close(out[1], gradients.ds, reduction(dtype(), cols), "ds");
            expect_close(out[2], gradients.dgain, reduction(DType::f32, cols), "dgain");
        }
    }
}

// Sums of gains and biases over more chunks than a block has groups.
TEST_P(KernelPathsTest, NormParametersOfManyRows) {
    const int64_t rows = sizes::kColumnRows * (sizes::kChunkGroups + 5) + 3, cols = 40;
    const Matrix x = random_matrix(rows, cols, 1, dtype()), dy = random_matrix(rows, cols, 2, dtype());
    const Matrix gain = random_matrix(1, cols, 3, DType::f32), before = random_matrix(1, cols, 4, DType::f32);
    const auto expected = reference::norm_backward(dy, x, gain, NormKind::layernorm);
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.output(dtype(), {rows, cols}), ds = h.output(dtype(), {rows, cols});
        const Tensor mean = h.output(DType::f32, {rows}), rstd = h.output(DType::f32, {rows});
        const Tensor dgain = h.output(DType::f32, {cols}), dbias = h.inout(before, DType::f32, {cols});
        const Tensor in = h.input(x, dtype()), g = h.input(gain, DType::f32, {cols});
        const Tensor upstream = h.input(dy, dtype());
        h.call(op::NormForward{
            .y = y, .mean = mean, .rstd = rstd, .x = in, .gain = g, .kind = NormKind::layernorm});
        h.call(op::NormBackward{.ds = ds,
                                .dgain = dgain,
                                .dy = upstream,
                                .s = in,
                                .mean = mean,
                                .rstd = rstd,
                                .gain = g,
                                .accumulate = false,
                                .kind = NormKind::layernorm});
        h.call(op::NormBackward{.ds = ds,
                                .dbias = dbias,
                                .dy = upstream,
                                .s = in,
                                .mean = mean,
                                .rstd = rstd,
                                .accumulate = true,
                                .kind = NormKind::layernorm});
        return {h.read(dgain), h.read(dbias)};
    });
    expect_close(out[0], expected.dgain, reduction(DType::f32, rows), "dgain");
    expect_close(out[1], reference::plus(expected.dbias, before), reduction(DType::f32, rows), "dbias");
}

// Rows that fit registers and longer ones, unaligned ones, and more rows than one round of blocks.
TEST_P(KernelPathsTest, MixNormOfLongAndManyRows) {
    Matrix c(1, 2);
    c.values = {0.75, -1.375};
    for (const auto& [rows, cols] : {std::pair{5, 768}, {5, 1028}, {5, 2056}, {5, 1029}, {8203, 8}}) {
        SCOPED_TRACE(fmt::format("T={} C={}", rows, cols));
        const auto matrix = [&, T = rows, C = cols](uint64_t seed) {
            return random_matrix(T, C, seed, dtype());
        };
        const Matrix x = matrix(1), z = matrix(2), dy = matrix(3);
        const Outputs out = run([&, T = rows, C = cols](Harness& h) -> Outputs {
            const auto output = [&] { return h.output(dtype(), {T, C}); };
            const Tensor y = output(), s = output(), dx = output(), dz = output(), ds = output();
            const Tensor rstd = h.output(DType::f32, {T}), dc = h.output(DType::f32, {2});
            const Tensor in = h.input(x, dtype()), upstream = h.input(dy, dtype());
            const MixWith mix{h.input(z, dtype()), h.input(c, DType::f32, {2})};
            h.call(op::MixNormForward{
                .y = y, .sum = s, .rstd = rstd, .x = in, .mix = mix, .kind = NormKind::rmsnorm});
            h.call(op::NormBackward{.ds = ds,
                                    .dy = upstream,
                                    .s = s,
                                    .rstd = rstd,
                                    .accumulate = false,
                                    .kind = NormKind::rmsnorm});
            h.call(op::MixNormBackward{.dx = dx,
                                       .dz = dz,
                                       .dcoefficients = dc,
                                       .dy = upstream,
                                       .s = s,
                                       .entered = in,
                                       .mix = mix,
                                       .rstd = rstd,
                                       .accumulate = false,
                                       .accumulate_z = false,
                                       .kind = NormKind::rmsnorm});
            return {h.read(y), h.read(s), h.read(ds), h.read(dx), h.read(dz), h.read(dc)};
        });
        expect_close(out[1], reference::mix_forward(x, z, c), few_operations(dtype()), "s");
        expect_close(out[0], reference::norm_forward(out[1], {}, {}, NormKind::rmsnorm).y,
                     reduction(dtype(), cols), "y");
        const auto mix = reference::mix_backward(out[2], x, z, c);
        expect_close(out[3], mix.dx, few_operations(dtype()), "dx");
        expect_close(out[4], mix.dz, few_operations(dtype()), "dz");
        // Tolerance of mix_norm_test.cpp.
        const double terms = static_cast<double>(rows * cols);
        expect_close(out[5], mix.dcoefficients, {16 * kF32Roundoff, 0, 32 * std::sqrt(terms) * kF32Roundoff},
                     "dc");
    }
}

// Heads so wide that a lane has several chunks of each half.
TEST_P(KernelPathsTest, RotaryOfWideHeads) {
    const RotaryOptions options{2, 1200, true, true};
    const Matrix q = random_matrix(3, 2400, 1, dtype()), k = random_matrix(3, 2400, 2, dtype());
    const Matrix cos = random_matrix(4, 600, 3, DType::f32), sin = random_matrix(4, 600, 4, DType::f32);
    const Matrix v = random_matrix(3, 2400, 5, dtype()), z = random_matrix(3, 2400, 6, dtype());
    const Matrix c = random_matrix(1, 2, 7, DType::f32);
    const Indices position{3, 0, 4};  // the last one is outside
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor tq = h.inout(q, dtype()), tk = h.inout(k, dtype()), mixed = h.output(dtype(), {3, 2400});
        const ValueMix value{mixed, h.input(v, dtype()), {h.input(z, dtype()), h.input(c, DType::f32, {2})}};
        h.call(op::QkNormRotaryForward{.q = tq,
                                       .k = tk,
                                       .rstd = h.output(DType::f32, {3, 4}),
                                       .cos = h.input(cos, DType::f32),
                                       .sin = h.input(sin, DType::f32),
                                       .position = h.input(position),
                                       .value = value,
                                       .options = options});
        return {h.read(tq), h.read(tk), h.read(mixed)};
    });
    const Indices inside{3, 0, 0};
    for (size_t part : {0, 1}) {
        const Matrix expected = reference::qk_norm_rotary_forward(part ? k : q, cos, sin, inside, options).u;
        expect_close(reference::row_block(out[part], 0, 2), reference::row_block(expected, 0, 2),
                     reduction(dtype(), 1200), "u");
        expect_all_nan(reference::row_block(out[part], 2, 1), "position outside");
    }
    expect_close(out[2], reference::mix_forward(v, z, c), few_operations(dtype()), "mixed");
}

}  // namespace
}  // namespace speedrun::testing
