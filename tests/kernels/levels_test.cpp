// f32 operations give the same bits at every instruction level, so a run can be repeated on another
// processor.
// Covers: kernels/cpu/cpu_ops.cpp
#include <gtest/gtest.h>

#include <utility>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::levels_test {

// Runs body at each level of this processor, with one thread and with three.
void expect_same_at_all_levels(const std::function<Outputs(Harness&)>& body) {
    Outputs lowest;
    for (const BackendFactory* level : backends()) {
        for (const int threads : {1, 3}) {
            SCOPED_TRACE(fmt::format("{}, {} threads", level->name, threads));
            Harness harness(*level, threads);
            const Outputs out = body(harness);
            harness.finish();
            if (lowest.empty()) lowest = out;
            ASSERT_EQ(out.size(), lowest.size());
            for (size_t i = 0; i < out.size(); ++i)
                expect_same_bits(out[i], lowest[i], fmt::format("output {}", i));
        }
    }
}

Tensor random_input(Harness& h, int64_t rows, int64_t cols, uint64_t seed) {
    return h.input(random_matrix(rows, cols, seed, DType::f32), DType::f32);
}

TEST(LevelsTest, Attention) {
    for (const auto& [dim, value_dim] :
         {std::pair<int64_t, int64_t>{16, 16}, {24, 24}, {64, 64}, {128, 128}, {64, 128}, {40, 24}}) {
        for (const int64_t length : {1, 7, 33, 100, 300}) {
            for (const int64_t window : {0, 21}) {
                SCOPED_TRACE(fmt::format("S={} D={}/{} window={}", length, dim, value_dim, window));
                const AttentionOptions options{length, 2, dim, window, 0.15f};
                expect_same_at_all_levels([&](Harness& h) -> Outputs {
                    Indices first;  // documents of 40 tokens
                    for (int32_t t = 0; t < 2 * length; ++t)
                        first.push_back(t - t % static_cast<int32_t>(length) % 40);
                    Tensor x[4], d[4];
                    for (int i = 0; i < 4; ++i) {
                        const int64_t width = 2 * (i < 2 ? dim : value_dim);
                        x[i] = random_input(h, 2 * length, width, static_cast<uint64_t>(i));
                        d[i] = h.output(DType::f32, {2 * length, width});
                    }
                    const Tensor lse = h.output(DType::f32, {2, 2 * length}), first_key = h.input(first);
                    h.call(op::AttentionForward{.o = d[3],
                                                .lse = lse,
                                                .q = x[0],
                                                .k = x[1],
                                                .v = x[2],
                                                .first_key = first_key,
                                                .options = options});
                    h.call(op::AttentionBackward{.dq = d[0],
                                                 .dk = d[1],
                                                 .dv = d[2],
                                                 .dout = x[3],
                                                 .o = d[3],
                                                 .lse = lse,
                                                 .q = x[0],
                                                 .k = x[1],
                                                 .v = x[2],
                                                 .first_key = first_key,
                                                 .options = options});
                    return {h.read(d[0]), h.read(d[1]), h.read(d[2]), h.read(d[3]), h.read(lse)};
                });
            }
        }
    }
}

// Rows that end in a partial vector, and more rows than a reduction has chunks.
TEST(LevelsTest, RowsAndElements) {
    constexpr int64_t kRows = 311, kCols = 90;
    expect_same_at_all_levels([](Harness& h) -> Outputs {
        Ops& ops = h.ops();
        Stream& stream = h.stream();
        const Tensor x = random_input(h, kRows, kCols, 1), z = random_input(h, kRows, kCols, 2);
        const auto make = [&](int64_t rows, int64_t cols) { return h.output(DType::f32, {rows, cols}); };
        const auto line = [&](int64_t count) { return h.output(DType::f32, {count}); };
        const Tensor sums = line(kCols), gelu = make(kRows, kCols), dgelu = make(kRows, kCols),
                     y = make(kRows, kCols), mean = line(kRows), rstd = line(kRows), dx = make(kRows, kCols),
                     dgain = line(kCols), dbias = line(kCols), losses = line(kRows),
                     dlogits = make(kRows, kCols), part = make(kRows, 2), losses_of_parts = line(kRows),
                     dlogits_of_parts = make(kRows, kCols),
                     targets = h.input(random_indices(kRows, kCols - 3, 4)),
                     gain = h.input(random_matrix(1, kCols, 3, DType::f32), DType::f32, {kCols});
        ops.column_sum({.out = sums, .x = x, .accumulate = false}, stream);
        ops.activation_forward({.y = gelu, .x = x, .activation = Activation::gelu_tanh}, stream);
        ops.activation_backward({.dx = dgelu, .dy = z, .saved = x, .activation = Activation::gelu_tanh},
                                stream);
        ops.norm_forward({.y = y,
                          .mean = mean,
                          .rstd = rstd,
                          .x = x,
                          .gain = gain,
                          .bias = gain,
                          .kind = NormKind::layernorm},
                         stream);
        ops.norm_backward({.ds = dx,
                           .dgain = dgain,
                           .dbias = dbias,
                           .dy = z,
                           .s = x,
                           .mean = mean,
                           .rstd = rstd,
                           .gain = gain,
                           .accumulate = false,
                           .kind = NormKind::layernorm},
                          stream);
        ops.cross_entropy({.losses = losses,
                           .dlogits = dlogits,
                           .logits = x,
                           .targets = targets,
                           .vocab_size = kCols - 3,
                           .softcap = {5.0f, 0.5f, 4.0f},
                           .gradient_scale = 0.1f},
                          stream);
        ops.cross_entropy_part({.part = part,
                                .logits = x,
                                .targets = targets,
                                .first = 0,
                                .vocab_size = kCols - 3,
                                .whole_vocab_size = kCols - 3,
                                .softcap = {5.0f, 0.5f, 4.0f}},
                               stream);
        ops.cross_entropy_of_parts({.losses = losses_of_parts,
                                    .dlogits = dlogits_of_parts,
                                    .logits = x,
                                    .parts = part,
                                    .targets = targets,
                                    .first = 0,
                                    .vocab_size = kCols - 3,
                                    .whole_vocab_size = kCols - 3,
                                    .softcap = {5.0f, 0.5f, 4.0f},
                                    .gradient_scale = 0.1f},
                                   stream);
        Outputs out;
        for (const Tensor& tensor : {sums, gelu, dgelu, y, mean, rstd, dx, dgain, dbias, losses, dlogits,
                                     part, losses_of_parts, dlogits_of_parts})
            out.push_back(h.read(tensor));
        return out;
    });
}

// With three threads: one matrix by all of them, three matrices together, and both in sequence.
TEST(LevelsTest, PolarExpress) {
    for (const int64_t count : {1, 3, 5}) {
        for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{33, 130}, {96, 40}}) {
            SCOPED_TRACE(fmt::format("[{},{},{}]", count, rows, cols));
            expect_same_at_all_levels([&](Harness& h) -> Outputs {
                const Tensor x = h.inout(random_matrix(count * rows, cols, 1, DType::f32), DType::f32,
                                         {count, rows, cols});
                const int64_t size = op::PolarExpress::workspace_size(count, rows, cols);
                h.call(op::PolarExpress{.x = {x}, .workspace = h.output(DType::f32, {size})});
                return {h.read(x)};
            });
        }
    }
}

}  // namespace speedrun::testing::levels_test
