// Kernel paths that the sizes of tests/kernels do not reach: several tiles, blocks, passes or rounds, rows
// that exceed registers, and strided rows. Also targets outside the vocabulary, which the host cannot check,
// so they do not throw.
#include <bit>

#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/kernels/loss_problem.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing {
namespace {

using namespace loss_problem;

class KernelPathsTest : public LossTest {};
SPEEDRUN_ON_BACKENDS(KernelPathsTest, backends());

// Rows of several rounds of a block's 1024 threads, aligned and not. Three targets: in the same chunk, in chunks that one thread
// stores, and two equal ones. Two parts: targets in chunks that one thread stores, of both parts.
TEST_P(KernelPathsTest, CrossEntropyWithLongRows) {
    struct Case {
        LossBy by;
        Split split;
        std::vector<double> weights;
        std::vector<Indices> targets;
        Gradient mode = Gradient::in_place;
    };
    const std::vector<Indices> both = {{0, 8996, -1}, {4097, 4096, 7}};
    const Case cases[] = {{LossBy::whole, {{8997, 9000}}, {}, {{8996, -1, 0}}, Gradient::separate},
                          {LossBy::whole, {{2048, 2051}}, {}, {{2047, -1, 0}}, Gradient::separate},
                          {LossBy::whole,
                           {{8997, 9000}},
                           {1, 0.5, 0.25},
                           {{0, 8992, 17, -1}, {1, 8996, 17, 5}, {8191, 4, 17, -1}}},
                          {LossBy::parts, {{4096, 4096}, {4901, 4901}}, {1, 0.5}, both},
                          {LossBy::parts, {{8992, 8992}, {5, 5}}, {1, 0.5}, both},
                          {LossBy::parts, {{1029, 1029}, {7968, 7968}}, {1, 0.5}, both}};
    for (const Case& c : cases) {
        for (const Softcap& softcap : kSoftcaps) {
            SCOPED_TRACE(fmt::format("{} of {} P={} softcap={}", c.split[0].size, c.split[0].padded,
                                     c.split.size(), softcap.cap));
            LossProblem problem =
                random_problem(c.split, static_cast<int64_t>(c.targets[0].size()), dtype(), 4.0);
            problem.weights = c.weights;
            problem.targets = c.targets;
            problem.softcap = softcap;
            check(problem, c.by, c.mode);
        }
    }
}

// Losses and gradients, in f32, of rows of which a GPU with this shared memory caches none, one or two of five rounds, or all.
std::vector<uint32_t> loss_bits(int64_t shared_memory, float softcap) {
    constexpr int64_t kRows = 3, kColumns = 9000;
    simt::SimtDevice device({.shared_memory = shared_memory});
    const auto ops = make_cuda_ops(device, nullptr, nullptr);
    const auto stream = device.create_stream("compute");
    const Buffer logits(device, "logits", MemoryCategory::activations, 4 * kRows * kColumns),
        dlogits(device, "dlogits", MemoryCategory::activations, 4 * kRows * kColumns),
        losses(device, "losses", MemoryCategory::activations, 4 * kRows),
        targets(device, "targets", MemoryCategory::activations, 4 * kRows);
    const Tensor in = logits.tensor(DType::f32, {kRows, kColumns}),
                 out = dlogits.tensor(DType::f32, {kRows, kColumns}),
                 of_rows = losses.tensor(DType::f32, {kRows}), ids = targets.tensor(DType::i32, {kRows});
    const Matrix values = random_matrix(kRows, kColumns, 1, DType::f32, 4.0);
    for (size_t i = 0; i < values.values.size(); ++i)
        in.as<float>()[i] = static_cast<float>(values.values[i]);
    for (int32_t t = 0; t < kRows; ++t)
        ids.as<int32_t>()[t] = 4000 * t;  // one target per round of the kernel
    ops->cross_entropy({.losses = of_rows,
                        .dlogits = out,
                        .logits = in,
                        .targets = ids,
                        .vocab_size = kColumns - 3,
                        .softcap = {softcap}},
                       *stream);
    stream->synchronize();
    std::vector<uint32_t> bits;
    for (int64_t t = 0; t < kRows; ++t) bits.push_back(std::bit_cast<uint32_t>(of_rows.as<float>()[t]));
    for (int64_t i = 0; i < kRows * kColumns; ++i)
        bits.push_back(std::bit_cast<uint32_t>(out.as<float>()[i]));
    return bits;
}

TEST(LossCacheTest, SameBitsForAnyCachedPart) {
    for (const float softcap : {0.0f, 15.0f, 60.0f}) {
        const std::vector<uint32_t> none = loss_bits(2 << 10, softcap);
        for (const int64_t shared_memory : {int64_t{20} << 10, int64_t{40} << 10, simt::kSharedMemoryOfH100})
            EXPECT_TRUE(loss_bits(shared_memory, softcap) == none)
                << shared_memory << " bytes, softcap " << softcap;
    }
}

// A target outside the vocabulary, or in a padding column: every part sees it, and none accesses a column for it.
TEST_P(KernelPathsTest, CrossEntropyTargetOutsideIsNan) {
    for (const auto& [by, split] :
         {std::pair{LossBy::whole, Split{{45, 48}}}, {LossBy::parts, Split{{24, 24}, {21, 24}}}}) {
        LossProblem problem = random_problem(split, 4, dtype());
        problem.softcap = {15.0f};
        problem.targets = {{-2, 45, 3, 30}};
        const Outputs out = outputs_of(problem, by, Gradient::separate);
        const Places places{split.size()};
        for (size_t p = 0; p < split.size(); ++p) {
            const Matrix& losses = out[places.losses(p)];
            EXPECT_TRUE(std::isnan(losses[0]));
            EXPECT_TRUE(std::isnan(losses[1])) << "a padding column is no target";
            EXPECT_TRUE(std::isfinite(losses[2]) && std::isfinite(losses[3]));
            EXPECT_EQ(reference::norm(reference::row_block(out[places.dlogits(p)], 0, 2)), 0.0);
        }
    }
}

// Heads so wide that a lane has several chunks of each half.
TEST_P(KernelPathsTest, RotaryWithWideHeads) {
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
    expect_close(out[2], reference::weighted_sum_forward(reference::mix_terms(v, z, c), v.rows),
                 few_operations(dtype()), "mixed");
}

}  // namespace
}  // namespace speedrun::testing
