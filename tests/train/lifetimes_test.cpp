// Stages at which each bucket is needed, and the memory shared between buckets.
// Covers: train/sharding/first_fit.cpp
#include "train/sharding/lifetimes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device/error.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"

namespace speedrun::testing::lifetimes_test {

ModelConfig odd_model(const char* preset, int64_t layers) {
    return model_of(preset, {.layers = layers, .width = 48, .heads = 3, .vocabulary = 257});
}

BucketRules cut_in(int shards) {
    BucketRules rules;
    rules.num_shards = shards;
    return rules;
}

const Bucket& bucket_of(const BucketLayout& layout, const ParameterTable& table, const char* name) {
    return layout.bucket_of(table.find(name));
}

std::vector<std::pair<int, int>> reads(const char* preset, const char* name, Reshard reshard) {
    const ParameterTable table = parameters_of(odd_model(preset, 2), 16);  // units 0 to 3, stages 0 to 7
    const BucketLayout layout(table, cut_in(2));
    std::vector<std::pair<int, int>> pairs;
    for (const Lifetime& read : reads_of(bucket_of(layout, table, name), Stages(table.num_units()), reshard))
        pairs.emplace_back(read.first, read.last);
    return pairs;
}

using Pairs = std::vector<std::pair<int, int>>;

TEST(LifetimeTest, ReadsFollowTheTwoPasses) {
    EXPECT_EQ(reads("modern", "blocks.1.mlp.up.weight", Reshard::yes), Pairs({{2, 2}, {5, 5}}));
    EXPECT_EQ(reads("modern", "blocks.1.mlp.up.weight", Reshard::except_last), Pairs({{2, 2}, {5, 5}}));
    EXPECT_EQ(reads("modern", "blocks.1.mlp.up.weight", Reshard::no), Pairs({{2, 7}}));
    EXPECT_EQ(reads("modern", "head.weight", Reshard::yes), Pairs({{3, 3}, {4, 4}}));
    EXPECT_EQ(reads("modern", "head.weight", Reshard::except_last), Pairs({{3, 4}}));
    EXPECT_EQ(reads("modern", "embed.weight", Reshard::yes), Pairs({{0, 0}})) << "backward reads no table";
    EXPECT_EQ(reads("gpt2", "embed.weight", Reshard::yes), Pairs({{0, 3}, {4, 4}})) << "it is the head";
    EXPECT_EQ(reads("gpt2", "embed.weight", Reshard::except_last), Pairs({{0, 4}}));
}

// Units 1 and 3 of 5 read the table; only unit 3 reads it in backward.
TEST(LifetimeTest, WhatSeveralUnitsReadStaysFromTheFirstToTheLast) {
    ParameterTable table = parameters_of(odd_model("modern", 3), 16);
    const int id = table.find("embed.weight").id;
    table.set_uses(id, {{.unit = 1}, {.unit = 3, .in_backward = true}});
    const BucketLayout layout(table, cut_in(2));
    const Bucket& bucket = layout.bucket_of(table[id]);
    const Stages stages(table.num_units());
    const std::vector<Lifetime> lifetimes = reads_of(bucket, stages, Reshard::yes);
    ASSERT_EQ(lifetimes.size(), 2U);
    EXPECT_EQ(std::pair(lifetimes[0].first, lifetimes[0].last), std::pair(1, 3));
    EXPECT_EQ(std::pair(lifetimes[1].first, lifetimes[1].last), std::pair(6, 6));
    EXPECT_EQ(gradient_of(bucket, stages).first, 6);
    EXPECT_EQ(gradient_of(bucket, stages).last, 8);
    EXPECT_THROW(table.set_uses(id, {{.unit = 3}, {.unit = 1}}), Error);
    EXPECT_THROW(table.set_uses(id, {}), Error);
}

TEST(LifetimeTest, GradientsLiveFromTheFirstContributionToTheLast) {
    const auto of = [](const char* preset, const char* name) {
        const ParameterTable table = parameters_of(odd_model(preset, 2), 16);
        const BucketLayout layout(table, cut_in(2));
        const Lifetime lifetime = gradient_of(bucket_of(layout, table, name), Stages(table.num_units()));
        return std::pair(lifetime.first, lifetime.last);
    };
    EXPECT_EQ(of("modern", "blocks.1.mlp.up.weight"), std::pair(5, 5));
    EXPECT_EQ(of("modern", "embed.weight"), std::pair(7, 7));
    EXPECT_EQ(of("gpt2", "embed.weight"), std::pair(4, 7)) << "the head's contribution comes first";
}

// Buckets with overlapping lifetimes share no byte. Buckets that share memory list each other.
TEST(SharedMemoryTest, NothingThatMeetsOverlaps) {
    for (const char* preset : {"modern", "gpt2"}) {
        const ParameterTable table = parameters_of(odd_model(preset, 5), 16);
        const Stages stages(table.num_units());
        for (const Reshard reshard : {Reshard::no, Reshard::yes, Reshard::except_last}) {
            BucketRules rules = cut_in(4);
            rules.whole_matrix = {true, false};
            for (const Parameter& p : table.all()) rules.group_of.push_back(p.is_matrix() ? 0 : 1);
            const BucketLayout layout(table, rules);
            std::vector<std::vector<Lifetime>> lifetimes;
            for (const Bucket& bucket : layout.all()) lifetimes.push_back(reads_of(bucket, stages, reshard));
            const std::vector<int64_t> bytes(lifetimes.size(), 2);
            const SharedMemory memory = share_memory(layout, lifetimes, bytes);
            int64_t sum = 0;
            for (const Bucket& a : layout.all()) {
                sum += layout.padded(a) * 2;
                EXPECT_LE(memory.offset[a.id] + layout.padded(a) * 2, memory.bytes);
                const std::vector<int>& sharing = memory.overlap[a.id];
                EXPECT_EQ(std::count(sharing.begin(), sharing.end(), a.id), 1);
                for (const int id : sharing) {
                    if (id == a.id) continue;
                    for (const Lifetime& x : lifetimes[a.id])
                        for (const Lifetime& y : lifetimes[id])
                            EXPECT_TRUE(x.last < y.first || y.last < x.first)
                                << a.name() << " and " << layout[id].name();
                }
            }
            if (reshard == Reshard::no) {
                EXPECT_GE(memory.bytes, sum);
            } else {
                EXPECT_LT(memory.bytes, sum);
            }
        }
    }
}

// The size of the ring does not depend on the depth.
TEST(SharedMemoryTest, RingDoesNotGrowWithDepth) {
    const auto bytes_of = [](int64_t layers) {
        const ParameterTable table = parameters_of(odd_model("modern", layers), 16);
        const BucketLayout layout(table, cut_in(2));
        std::vector<std::vector<Lifetime>> lifetimes;
        for (const Bucket& bucket : layout.all()) {
            Lifetime lifetime = gradient_of(bucket, Stages(table.num_units()));
            ++lifetime.last;
            lifetimes.push_back({lifetime});
        }
        return share_memory(layout, lifetimes, std::vector<int64_t>(lifetimes.size(), 4)).bytes;
    };
    EXPECT_EQ(bytes_of(12), bytes_of(24));
}

}  // namespace speedrun::testing::lifetimes_test
