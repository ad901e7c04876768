// Weights stored in bf16 without f32 masters: initial values, host values, memory, and the tensors of a checkpoint.
#include <gtest/gtest.h>

#include "tests/train/cut_table.h"
#include "tests/train/small_model.h"
#include "train/checkpoint/state_pieces.h"
#include "train/model/build_model.h"
#include "train/sharding/parameter_store.h"

namespace speedrun::testing::bf16_weights_test {

using Values = std::vector<float>;

// Group 0: matrices stored in bf16. Group 1: vectors.
BucketRules rules_of(const ParameterTable& table, bool in_bf16) {
    BucketRules rules;
    for (const Parameter& p : table.all()) rules.group_of.push_back(p.is_matrix() ? 0 : 1);
    rules.bf16_weights = {in_bf16, false};
    rules.target = 40;
    return rules;
}

struct Way {
    int parts = 1, shards = 1;
    bool stored_sharded = false;
};

// Concatenates the master shards of all ranks of one tensor part.
template <class Fill>
Values masters(const Way& way, int part, bool in_bf16, Fill&& fill) {
    const ParameterTable table = cut_table({.size = way.parts, .index = part});
    Values values;
    for (int shard = 0; shard < way.shards; ++shard) {
        Runtime runtime({.device = DeviceKind::cpu, .precision = DType::bf16, .threads = 1});
        BucketRules rules = rules_of(table, in_bf16);
        rules.num_shards = way.shards;
        rules.index = shard;
        if (way.stored_sharded) rules.stored_sharded = Reshard::yes;
        ParameterStore store(table, rules, runtime);
        fill(store);
        runtime.synchronize();
        for (const Bucket& bucket : store.layout().all()) {
            const bool halves = in_bf16 && bucket.group == 0;
            EXPECT_EQ(bucket.master, halves ? DType::bf16 : DType::f32);
            const Tensor master = store.master_shard(bucket), compute = store.compute_shard(bucket);
            EXPECT_EQ(master.dtype, bucket.master) << bucket.name();
            if (halves) {
                EXPECT_EQ(master.data, compute.data) << bucket.name();
            }
            for (const Piece& piece : store.layout().shard_pieces(bucket)) {
                for (int64_t i = piece.in_shard; i < piece.in_shard + piece.in_parameter.count; ++i) {
                    if (bucket.group == 1) continue;
                    // With f32 masters, the compute copy equals the value stored without them.
                    values.push_back(compute.as<Bf16>()[i]);
                    if (halves) continue;
                    EXPECT_EQ(Bf16(master.as<float>()[i]).bits, compute.as<Bf16>()[i].bits);
                }
            }
        }
    }
    return values;
}

constexpr Way kWays[] = {{1, 1}, {1, 3}, {1, 2, true}, {2, 1}, {3, 2}, {2, 3, true}};

TEST(Bf16WeightsTest, InitialValuesAreThoseOfMastersRounded) {
    const auto initialize = [](ParameterStore& store) { store.initialize(7); };
    for (const Way& way : kWays)
        for (int part = 0; part < way.parts; ++part)
            EXPECT_EQ(masters(way, part, true, initialize), masters(way, part, false, initialize))
                << way.parts << " parts, " << way.shards << " shards";
}

TEST(Bf16WeightsTest, HostValuesAreRounded) {
    std::vector<Values> whole;
    const ParameterTable table = cut_table({});
    for (const Parameter& p : table.all()) {
        whole.emplace_back();
        for (int64_t i = 0; i < p.numel(); ++i)
            whole.back().push_back(static_cast<float>(p.id) + static_cast<float>(i) / 3);
    }
    const auto assign = [&](ParameterStore& store) { store.assign(whole); };
    for (const Way& way : kWays)
        for (int part = 0; part < way.parts; ++part)
            EXPECT_EQ(masters(way, part, true, assign), masters(way, part, false, assign))
                << way.parts << " parts, " << way.shards << " shards";
    const auto one_by_one = [&](ParameterStore& store) {
        for (const Parameter& p : table.all()) store.assign(p, whole[static_cast<size_t>(p.id)].data());
    };
    for (const bool in_bf16 : {false, true})
        EXPECT_EQ(masters({}, 0, in_bf16, one_by_one), masters({}, 0, false, assign)) << in_bf16;
}

// More elements than one rounding chunk holds.
TEST(Bf16WeightsTest, LargeParametersAreRoundedInParts) {
    using enum Dimension;
    ParameterTable table;
    table.declare("table", {{.dimension = vocabulary, .size = 1100}, {.dimension = width, .size = 1001}},
                  {InitRule::Kind::normal, 1});
    table.set_num_units(1);
    const auto initial = [&](bool in_bf16) {
        Runtime runtime({.device = DeviceKind::cpu, .precision = DType::bf16, .threads = 1});
        ParameterStore store(table, rules_of(table, in_bf16), runtime);
        store.initialize(7);
        runtime.synchronize();
        const Bf16* const first = store.compute_flat(table[0]).as<Bf16>();
        return Values(first, first + table[0].numel());
    };
    EXPECT_EQ(initial(true), initial(false));
}

TEST(Bf16WeightsTest, MastersTakeNoMemory) {
    const ParameterTable table = cut_table({});
    int64_t vectors = 0, numbers = 0;
    for (const Parameter& p : table.all()) (p.is_matrix() ? numbers : vectors) += p.numel();
    const auto bytes = [&](bool in_bf16, MemoryCategory category) {
        Runtime runtime({.device = DeviceKind::cpu, .precision = DType::bf16, .threads = 1});
        const ParameterStore store(table, rules_of(table, in_bf16), runtime);
        return runtime.device().memory().total(category);
    };
    EXPECT_GE(bytes(false, MemoryCategory::master_weights), 4 * (vectors + numbers));
    EXPECT_GE(bytes(true, MemoryCategory::master_weights), 4 * vectors);
    EXPECT_LT(bytes(true, MemoryCategory::master_weights), 4 * vectors + int64_t{64} * table.size());
    EXPECT_EQ(bytes(true, MemoryCategory::parameters), bytes(false, MemoryCategory::parameters));
}

TEST(Bf16WeightsTest, AreComputedWithInBf16) {
    const ParameterTable table = cut_table({});
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    EXPECT_THROW(ParameterStore(table, rules_of(table, true), runtime), Error);
    BucketRules vectors = rules_of(table, false);
    vectors.bf16_weights = {false, true};
    EXPECT_THROW(BucketLayout(table, vectors), Error);
}

TEST(Bf16WeightsTest, CheckpointsHoldThemAsTheyAre) {
    OptimizersConfig optimizers = muon_and_adamw();
    optimizers.groups[1].adamw.weights_dtype = DType::bf16;
    for (const CheckpointTensor& tensor : checkpoint_tensors(parameters_of(tiny_model(), 8), optimizers)) {
        const bool is_bf16 = tensor.name == "master/embed.weight" || tensor.name == "master/head.weight";
        EXPECT_EQ(tensor.dtype, is_bf16 ? DType::bf16 : DType::f32) << tensor.name;
    }
}

}  // namespace speedrun::testing::bf16_weights_test
