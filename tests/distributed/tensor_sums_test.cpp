// Sums of gradients over ranks and two microbatches, and their norm. Values are integers, so that sums are exact in any
// order.
// Covers: train/sharding/reducer.cpp
#include <gtest/gtest.h>

#include <cmath>

#include "tests/distributed/rank_threads.h"
#include "tests/each_element.h"
#include "tests/train/cut_table.h"
#include "tests/train/small_model.h"
#include "train/sharding/step_statistics.h"

namespace speedrun::testing::tensor_sums_test {

struct Mode {
    Mesh mesh;
    Strategy strategy;
    bool sequence_parallel, muon;

    std::string describe() const {
        return fmt::format("{} {}{}{}", mesh.describe(), word_of(strategy),
                           sequence_parallel ? " sequence" : "", muon ? " muon" : "");
    }
    OptimizersConfig optimizers() const {
        OptimizersConfig config;
        config.groups = {
            optimizer_group(muon ? OptimizerKind::muon : OptimizerKind::adamw, {"qkv.weight", "down.weight"}),
            optimizer_group(OptimizerKind::adamw, {"*"})};
        return config;
    }
    Sharing sharing() const { return {.strategy = strategy, .bucket_bytes = 400}; }
    int data_ranks() const { return mesh.size({Axis::replicate, Axis::shard, Axis::context}); }
};

// Gradient of an element of the whole parameter in a microbatch of data rank 0; times i + 1 on data rank i.
float gradient(const Parameter& p, int64_t element) {
    return static_cast<float>((p.id * 3 + element * 5) % 7 - 3);
}

// Sum of a gradient over its ranks and two microbatches, as a multiple of gradient(). Tensor ranks add terms if they
// have different tokens and the whole parameter.
float terms(const Parameter& p, const Mode& mode) {
    const bool over_tensor = mode.sequence_parallel && p.cut.all();
    const int n = mode.data_ranks();
    return static_cast<float>(n * (n + 1) * (over_tensor ? mode.mesh.size(Axis::tensor) : 1));
}

// Norm over the whole parameters.
double expected_norm(const Mode& mode) {
    double squares = 0;
    // Any part shows if the parameter is cut.
    const ParameterTable table = cut_table({.size = mode.mesh.size(Axis::tensor)});
    for (const Parameter& p : table.all())
        for (int64_t i = 0; i < p.whole_numel(); ++i) squares += std::pow(gradient(p, i) * terms(p, mode), 2);
    return std::sqrt(squares);
}

void check_rank(World& world, const Mode& mode) {
    const Ranks ranks(mode.mesh, mode.sharing(), &world);
    const auto data_rank = static_cast<float>(
        1 + mode.mesh.group(world.rank(), {Axis::replicate, Axis::shard, Axis::context}).index);
    const int tensor = mode.mesh.coordinates(world.rank())[static_cast<size_t>(Axis::tensor)];
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1, .communicates = true});
    const ParameterTable table = cut_table(
        {.size = mode.mesh.size(Axis::tensor), .index = tensor, .sequence = mode.sequence_parallel});
    ParameterStore parameters(table, bucket_rules(ranks, table, mode.optimizers()), runtime);
    const BucketLayout& layout = parameters.layout();
    GradientStore gradients(table, layout, runtime, gradient_memory(ranks, 2, true));
    Reducer reducer(ranks, parameters, gradients, runtime);
    OptimizersConfig optimizers = mode.optimizers();
    StepStatistics statistics(optimizers, ranks, layout, gradients, reducer, runtime);

    for (const int id : layout.backward_order()) {
        const Bucket& bucket = layout[id];
        for (const bool first : {true, false}) {
            auto* const raw = gradients.whole(bucket).as<float>();
            std::fill_n(raw, layout.padded(bucket), 0.0f);
            // Without accumulators, backward adds the second microbatch to the first.
            const bool accumulators = gradients.memory().accumulators;
            const float factor = data_rank * (first || accumulators ? 1.0f : 2.0f);
            for (const Parameter* p : bucket.parameters)
                each_element(*p, {0, p->numel()}, [&](int64_t at, int64_t element) {
                    raw[layout.in_bucket(*p) + at] = factor * gradient(*p, element);
                });
            const int64_t sent = reducer.bytes_sent();
            reducer.reduce(bucket, first, !first, runtime.reduce());
            runtime.reduce().synchronize();
            if (first && !accumulators) {
                EXPECT_EQ(reducer.bytes_sent(), sent) << "sent before the last microbatch";
            }
        }
        const auto* const shard = gradients.shard(bucket).as<float>();
        int64_t wrong = 0;
        for (const Piece& piece : layout.shard_pieces(bucket))
            each_element(*piece.parameter, piece.in_parameter, [&](int64_t at, int64_t element) {
                wrong += shard[piece.in_shard + at] !=
                         gradient(*piece.parameter, element) * terms(*piece.parameter, mode);
            });
        EXPECT_EQ(wrong, 0) << mode.describe() << " rank " << world.rank() << ": " << bucket.name();
        const Bucket* const buckets[] = {&bucket};
        statistics.take_norms(buckets);
    }
    runtime.ops().fill({.x = statistics.loss_sum(), .value = 1}, runtime.compute());
    runtime.ops().fill({.x = statistics.stop(), .value = 0}, runtime.compute());
    statistics.take_loss();
    runtime.synchronize();
    statistics.combine(std::vector<bool>(static_cast<size_t>(layout.size()), true));
    runtime.synchronize();
    std::vector<float> host(static_cast<size_t>(statistics.host_bytes()) / sizeof(float));
    statistics.read(host.data(), runtime.reduce());
    runtime.synchronize();
    const HostStatistics numbers(host.data());
    EXPECT_EQ(numbers.loss_sum(), mode.data_ranks()) << mode.describe();
    EXPECT_EQ(numbers.grad_norm(), static_cast<float>(expected_norm(mode))) << mode.describe();
}

TEST(TensorSumsTest, GradientsAndNormMatchOneRank) {
    for (const std::array<int, kNumAxes>& sizes : {std::array{1, 1, 1, 1},
                                                   {1, 1, 1, 2},
                                                   {1, 2, 1, 2},
                                                   {2, 1, 1, 2},
                                                   {2, 3, 1, 1},
                                                   {1, 1, 2, 3},
                                                   {2, 2, 1, 2}})
        for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3})
            for (const bool sequence_parallel : {false, true})
                for (const bool muon : {false, true}) {
                    const Mode mode{Mesh(sizes), strategy, sequence_parallel, muon};
                    run_ranks(mode.mesh.world_size(), [&](World& world) { check_rank(world, mode); });
                }
}

}  // namespace speedrun::testing::tensor_sums_test
