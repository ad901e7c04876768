// The Reducer alone. Gradients are integers, so that sums are exact in any order, and equality means that no term is
// lost or counted twice.
#include "train/sharding/reducer.h"

#include <gtest/gtest.h>

#include "tests/distributed/rank_threads.h"
#include "tests/sanitized.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing {
namespace reducer_test {

OptimizersConfig adamw() {
    OptimizerGroupConfig all;
    all.type = OptimizerKind::adamw;
    all.params = {"*"};
    OptimizersConfig config;
    config.groups = {all};
    return config;
}

float gradient(int rank, int64_t microbatch, int64_t element) {
    return static_cast<float>((rank + 1) * (microbatch == 0 ? 1 : 10) + element % 97);
}

// Engine state of one rank between backward and the optimizer.
struct Rank {
    Ranks ranks;
    Runtime runtime{{.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1, .communicates = true}};
    ParameterTable table =
        parameters_of(model_of("gpt2", {.layers = 1, .width = 16, .heads = 2, .vocabulary = 40}), 16);
    ParameterStore parameters;
    GradientStore gradients;
    Reducer reducer;

    Rank(World& world, const Mesh& mesh, const Sharing& sharing)
        : ranks(mesh, sharing, &world),
          parameters(table, bucket_rules(ranks, table, adamw()), runtime),
          gradients(table, parameters.layout(), runtime, gradient_memory(ranks, 2, true)),
          reducer(ranks, parameters, gradients, runtime) {}

    // Fills one microbatch's gradient of a bucket, as backward does, and reduces it.
    void run(const Bucket& bucket, int64_t microbatch) {
        const bool keeps_shard = gradients.memory().accumulators;
        auto* const whole = static_cast<float*>(gradients.whole(bucket).data);
        for (int64_t e = 0; e < bucket.count; ++e) {
            const float before = keeps_shard || microbatch == 0 ? 0 : whole[e];
            whole[e] = before + gradient(ranks.rank(), microbatch, e);
        }
        reducer.reduce(bucket, microbatch == 0, microbatch == 1, runtime.reduce());
        runtime.reduce().synchronize();
    }
    // Compares this rank's shard of the gradient with the sum over these ranks and the first microbatches.
    void expect_sum(const Bucket& bucket, const std::vector<int>& over, int64_t microbatches) {
        const auto* const shard = static_cast<const float*>(gradients.shard(bucket).data);
        for (int64_t e = 0; e < parameters.layout().valid(bucket); ++e) {
            float sum = 0;
            for (const int rank : over)
                for (int64_t m = 0; m < microbatches; ++m)
                    sum += gradient(rank, m, bucket.index * bucket.shard_size + e);
            ASSERT_EQ(shard[e], sum) << bucket.name() << " element " << e << " after " << microbatches;
        }
    }
};

// HSDP example of the spec, R 4 x S 8 and two microbatches. After the first, a rank holds the sum over its shard
// group; after the second, the sum of both over all ranks.
TEST(ReducerTest, HsdpExampleOfTheSpec) {
    const Mesh mesh({kSanitized ? 2 : 4, kSanitized ? 4 : 8, 1, 1});
    for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        for (const Launch launch : {Launch::ready, Launch::after_backward}) {
            run_ranks(mesh.world_size(), [&](World& world) {
                Rank rank(world, mesh, {.strategy = strategy, .launch = launch});
                const std::vector<int> shard = mesh.group(world.rank(), {Axis::shard}).ranks,
                                       all = mesh.group(world.rank(), {Axis::replicate, Axis::shard}).ranks;
                for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
                    for (const int id : rank.parameters.layout().backward_order()) {
                        const Bucket& bucket = rank.parameters.layout()[id];
                        rank.run(bucket, microbatch);
                        if (microbatch == 1) {
                            rank.expect_sum(bucket, all, 2);
                        } else if (*rank.ranks.sharing().accumulate == Accumulate::reduce_scatter) {
                            rank.expect_sum(bucket, shard, 1);
                        } else {
                            EXPECT_EQ(rank.reducer.bytes_sent(), 0) << "sent before the last microbatch";
                        }
                    }
                }
            });
        }
    }
}

}  // namespace reducer_test
}  // namespace speedrun::testing
