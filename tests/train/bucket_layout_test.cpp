// Every element of every parameter is in exactly one bucket. Buckets close in backward order.
#include "train/sharding/bucket_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/train/bucket_rules.h"
#include "train/model/build_model.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing::bucket_layout_test {

TEST(BucketLayoutTest, CoversEveryElementOnce) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    for (const int64_t target : {int64_t{0}, int64_t{1000}, kTarget, int64_t{1} << 40}) {
        for (const int shards : {1, 2, 3, 4, 8}) {
            std::map<int, std::set<int64_t>> seen;  // elements seen, by parameter
            for (int index = 0; index < shards; ++index) {
                const BucketLayout layout(table, rules_for(table, shards, index, target));
                int64_t end = 0;
                for (const Bucket& bucket : layout.all()) {
                    EXPECT_GE(bucket.offset, end) << "buckets overlap";
                    end = bucket.offset + layout.padded(bucket);
                    EXPECT_LE(bucket.count, layout.padded(bucket));
                    for (const Piece& piece : layout.shard_pieces(bucket)) {
                        const Parameter& p = *piece.parameter;
                        EXPECT_LE(piece.in_shard + piece.in_parameter.count, layout.valid(bucket));
                        EXPECT_EQ(index * bucket.shard_size + piece.in_shard,
                                  layout.in_bucket(p) + piece.in_parameter.begin)
                            << p.name << " is not contiguous";
                        for (int64_t i = piece.in_parameter.begin; i < piece.in_parameter.end(); ++i)
                            EXPECT_TRUE(seen[p.id].insert(i).second) << p.name << " twice";
                    }
                }
                EXPECT_LE(end, layout.elements());
            }
            for (const Parameter& p : table.all())
                EXPECT_EQ(static_cast<int64_t>(seen[p.id].size()), p.numel()) << p.name << " over " << shards;
        }
    }
}

// A bucket collects consecutive parameters of one group and dtype in backward order until it reaches the target size.
TEST(BucketLayoutTest, ClosesBucketsAsBackwardGoes) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    const BucketLayout layout(table, rules_for(table, 4));
    std::map<std::pair<int, bool>, int> last;  // earliest parameter so far, by group and dtype
    int full = 0;
    for (const int id : layout.backward_order()) {
        const Bucket& bucket = layout[id];
        const bool alone = bucket.parameters.size() == 1;
        full += bucket.count >= kTarget;
        for (const Parameter* p : bucket.parameters) {
            EXPECT_EQ(p->full_precision, bucket.full_precision) << bucket.name();
            EXPECT_EQ(&layout.bucket_of(*p), &bucket);
            EXPECT_TRUE(alone || p->numel() < kTarget) << p->name << " is a bucket of its own";
        }
        if (!alone) {
            EXPECT_LT(bucket.count - bucket.first().numel(), kTarget) << bucket.name() << " was full";
        }
        const std::pair key(bucket.group, bucket.full_precision);
        if (!alone && last.count(key)) {
            EXPECT_LT(bucket.parameters.back()->id, last[key]) << bucket.name();
        }
        if (!alone) last[key] = bucket.first().id;
    }
    EXPECT_GE(full, 3) << "the blocks are not one bucket";
    // One rank sends nothing: each parameter is its own bucket.
    EXPECT_EQ(BucketLayout(table, rules_for(table, 1, 0, 0)).size(), table.size());
}

// zero3: one bucket for each unit's matrices, one for the vectors of all units.
TEST(BucketLayoutTest, StoredInPartsAUnitIsABucket) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    BucketRules rules = rules_for(table, 4);
    rules.group_of.clear();
    rules.stored_sharded = Reshard::yes;
    const BucketLayout layout(table, rules);
    int of_matrices = 0;
    for (const Bucket& bucket : layout.all()) {
        of_matrices += !bucket.full_precision;
        for (const Parameter* p : bucket.parameters)
            EXPECT_TRUE(bucket.full_precision || p->unit() == bucket.first().unit()) << bucket.name();
    }
    EXPECT_EQ(of_matrices, 4) << "embeddings and head are tied, three blocks";
    EXPECT_EQ(layout.size(), 5) << "and one of vectors";
}

// Norm gains are replicated over the tensor axis. Biases of the MLP's hidden layer are sharded over it.
TEST(BucketLayoutTest, ABucketIsPlacedAlike) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    OptimizersConfig optimizers;
    optimizers.groups.emplace_back().params = {"*"};
    const Sharing sharing{.strategy = Strategy::zero2, .bucket_bytes = 1 << 30};
    const auto buckets = [&](const Mesh& mesh) {
        const Ranks ranks(mesh, sharing);
        const BucketLayout layout(table, bucket_rules(ranks, table, optimizers));
        EXPECT_NO_THROW(step_collectives(layout, ranks, DType::bf16));
        return std::pair(layout.bucket_of(table.find("blocks.1.mlp_norm.gain")).id,
                         layout.bucket_of(table.find("blocks.1.mlp.up.bias")).id);
    };
    const auto [gain, bias] = buckets(Mesh({1, 4, 1, 1}));
    EXPECT_EQ(gain, bias);
    const auto [gain_of_tensor, bias_of_tensor] = buckets(Mesh({1, 2, 1, 2}));
    EXPECT_NE(gain_of_tensor, bias_of_tensor);

    BucketRules mixed = bucket_rules(Ranks(Mesh({1, 2, 1, 2}), sharing), table, optimizers);
    mixed.placement_of.clear();
    const BucketLayout layout(table, mixed);
    EXPECT_THROW(step_collectives(layout, Ranks(Mesh({1, 2, 1, 2}), sharing), DType::bf16), Error);
}

TEST(BucketLayoutTest, PaddingIsLittle) {
    const ParameterTable table = parameters_of(gpt2_124m(), 1024);
    for (const int shards : {8, 64, 1024}) {
        const BucketLayout layout(table, rules_for(table, shards, 0, 8 << 20));
        EXPECT_LT(static_cast<double>(layout.elements()), 1.005 * static_cast<double>(table.numel()))
            << shards << " ranks";
    }
}

TEST(BucketLayoutTest, BackwardCompletesTheLastDeclaredFirst) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    const BucketLayout layout(table, rules_for(table, 4));
    const std::vector<int> order = layout.backward_order();
    EXPECT_EQ(order.size(), layout.all().size());
    for (size_t i = 1; i < order.size(); ++i)
        EXPECT_GT(layout[order[i - 1]].first().id, layout[order[i]].first().id);
}

}  // namespace speedrun::testing::bucket_layout_test
