// Collectives derived for single parameters and for a model, with bytes computed by hand.
// Covers: train/comm/collective.cpp
#include "train/sharding/step_collectives.h"

#include <gtest/gtest.h>

#include "kernels/device/error.h"
#include "tests/train/cut_matrices.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/optim/groups.h"

namespace speedrun::testing::step_collectives_test {

Sharing sharing_of(Strategy strategy, std::optional<Accumulate> accumulate = {},
                   std::optional<Reshard> reshard = {}) {
    return resolve_sharing(
        {.strategy = strategy, .accumulate = accumulate, .reshard_after_forward = reshard});
}

// Lines of the form "kind/axes/payload bytes/when".
std::vector<std::string> lines(const std::vector<StepCollective>& planned) {
    std::vector<std::string> all;
    for (const StepCollective& c : planned)
        all.push_back(fmt::format("{} {} {} {} {}", name_of(c.kind), c.axes.describe(), name_of(c.dtype),
                                  c.payload_bytes, name_of(c.when)));
    return all;
}

// A small model of the engine's kind with a sharing, in bf16.
struct Planned {
    Ranks ranks;
    ParameterTable table;
    BucketLayout layout;
    std::vector<BucketCollectives> rows;

    Planned(const Sharing& sharing, const Mesh& mesh, OptimizerKind optimizer = OptimizerKind::adamw,
            const ModelConfig& model = small_model("modern"))
        : ranks(mesh, sharing),
          table(parameters_of(model, 16)),
          layout(table, bucket_rules(ranks, table, groups(optimizer))),
          rows(step_collectives(layout, ranks, DType::bf16)) {}

    static ModelConfig small_model(const char* preset) {
        return model_of(preset, {.layers = 3, .width = 48, .heads = 3, .vocabulary = 257});
    }
    static OptimizersConfig groups(OptimizerKind optimizer) {
        OptimizersConfig config;
        OptimizerGroupConfig matrices, rest;
        matrices.type = optimizer;
        matrices.params = {"blocks.*.weight"};
        rest.type = OptimizerKind::adamw;
        rest.params = {"*"};
        config.groups = {matrices, rest};
        return config;
    }
    int64_t count(Collective kind, When when) const {
        int64_t found = 0;
        for (const BucketCollectives& row : rows)
            for (const StepCollective& c : row.collectives)
                found += row.bucket >= 0 && c.kind == kind && c.when == when;
        return found;
    }
    const BucketCollectives& row_of(const char* name) const {
        const int bucket = layout.bucket_of(table.find(name)).id;
        for (const BucketCollectives& row : rows)
            if (row.bucket == bucket) return row;
        return rows.back();
    }
};

using Lines = std::vector<std::string>;

// The head, 257 rows of 48 values padded to 320 rows, in its own bucket. Over 7 ranks: 2208 values each (a multiple
// of 16), 15456 in total; f32 61824 bytes, bf16 half of that.
TEST(StepCollectivesTest, EveryStrategyOnOneBucket) {
    const Mesh mesh({1, 7, 1, 1});
    const auto of = [&](Strategy strategy, std::optional<Accumulate> accumulate = {},
                        std::optional<Reshard> reshard = {}) {
        return lines(
            Planned(sharing_of(strategy, accumulate, reshard), mesh).row_of("head.weight").collectives);
    };
    EXPECT_EQ(of(Strategy::ddp), Lines({"all_reduce shard f32 61440 last microbatch"}));  // unpadded
    EXPECT_EQ(of(Strategy::zero1), Lines({"reduce_scatter shard f32 61824 last microbatch",
                                          "all_gather shard bf16 30912 after the step"}));
    EXPECT_EQ(of(Strategy::zero2), Lines({"reduce_scatter shard f32 61824 every microbatch",
                                          "all_gather shard bf16 30912 after the step"}));
    EXPECT_EQ(
        of(Strategy::zero3, {}, Reshard::yes),
        Lines({"all_gather shard bf16 30912 before forward", "all_gather shard bf16 30912 before backward",
               "reduce_scatter shard f32 61824 every microbatch"}));
    EXPECT_EQ(of(Strategy::zero3, Accumulate::local, Reshard::no),
              Lines({"all_gather shard bf16 30912 after the step",
                     "reduce_scatter shard f32 61824 last microbatch"}));
    const Planned planned(sharing_of(Strategy::zero1), mesh);
    const StepCollective& scatter = planned.row_of("head.weight").collectives[0];
    EXPECT_EQ(scatter.padding_bytes, 96 * 4);
    EXPECT_EQ(scatter.sent_bytes, 61824.0 * 6 / 7);
    EXPECT_EQ(scatter.describe(), "reduce_scatter over shard (7 ranks), f32, 0.06 MiB, last microbatch");
}

// R 4 x S 7: the all_reduce over the replicas has one shard, 2208 values, and runs only after the last microbatch.
TEST(StepCollectivesTest, HsdpUnderZero1AndZero2) {
    const Mesh mesh({4, 7, 1, 1});
    const auto of = [&](Strategy strategy, std::optional<Accumulate> accumulate = {}) {
        return lines(Planned(sharing_of(strategy, accumulate), mesh).row_of("head.weight").collectives);
    };
    const std::string gather = "all_gather shard bf16 30912 before forward",
                      copies = "all_reduce replicate f32 8832 last microbatch";
    EXPECT_EQ(of(Strategy::zero3, Accumulate::reduce_scatter),
              Lines({gather, "reduce_scatter shard f32 61824 every microbatch", copies}));
    EXPECT_EQ(of(Strategy::zero3, Accumulate::local),
              Lines({gather, "reduce_scatter shard f32 61824 last microbatch", copies}));
    EXPECT_EQ(of(Strategy::zero1), Lines({"reduce_scatter shard f32 61824 last microbatch", copies,
                                          "all_gather shard bf16 30912 after the step"}));
    EXPECT_EQ(of(Strategy::ddp), Lines({"all_reduce replicate x shard f32 61440 last microbatch"}));
}

TEST(StepCollectivesTest, OneRankHasNoCollectives) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3})
        for (const BucketCollectives& row : Planned(sharing_of(strategy), Mesh()).rows)
            EXPECT_EQ(lines(row.collectives), Lines()) << row.name;
}

TEST(StepCollectivesTest, ContextFoldsIntoShard) {
    AxisPlacements partial, cut;
    for (const Axis axis : {Axis::shard, Axis::context}) {
        partial[static_cast<size_t>(axis)] = Placement::partial();
        cut[static_cast<size_t>(axis)] = Placement::shard(0);
    }
    EXPECT_EQ(lines(collectives_between(partial, cut, {.elements = 15456, .padding = 96}, Mesh({1, 4, 2, 1}),
                                        DType::f32, When::last_microbatch)),
              Lines({"reduce_scatter shard x context f32 61824 last microbatch"}));
}

// Under sequence parallelism a norm's gain is summed over tensor, then cut.
TEST(StepCollectivesTest, TensorIsSummedFirst) {
    const ParameterPlacement norm = [] {
        Parameter gain;
        gain.dimensions = {Dimension::width};
        gain.summed = {Dimension::own_tokens};
        return place_parameter(sharing_of(Strategy::zero1), gain);
    }();
    EXPECT_EQ(
        lines(collectives_between(norm.accumulated, norm.state, {.elements = 64, .padding = 16},
                                  Mesh({1, 2, 1, 2}), DType::f32, When::last_microbatch)),
        Lines({"all_reduce tensor f32 256 last microbatch", "reduce_scatter shard f32 256 last microbatch"}));
}

// An unknown change of placement must throw and not be skipped.
TEST(StepCollectivesTest, UnknownChangeThrows) {
    const Mesh mesh({1, 2, 1, 2});
    AxisPlacements full, rows, columns, tensor_rows;
    rows[static_cast<size_t>(Axis::shard)] = Placement::shard(0);
    columns[static_cast<size_t>(Axis::shard)] = Placement::shard(1);
    tensor_rows[static_cast<size_t>(Axis::tensor)] = Placement::shard(0);
    const auto derive = [&](const AxisPlacements& from, const AxisPlacements& to) {
        return collectives_between(from, to, {.elements = 64}, mesh, DType::f32, When::after_step);
    };
    EXPECT_EQ(derive(rows, full).size(), 1u);
    EXPECT_THROW(derive(rows, columns), Error);
    EXPECT_THROW(derive(tensor_rows, full), Error);
}

// Matrices that the tensor axis cuts are exchanged among all ranks that hold a part, others within a tensor
// coordinate. Elements in bf16: `out` has parts of 60 of 120, of which the owner holds 60, 32 (two shards) or 16
// (four shards). `mix` has 50, of which the owner holds 18.
TEST(StepCollectivesTest, MatrixExchangeIsAmongHoldingRanks) {
    const ParameterTable table = cut_matrices({.size = 2});
    OptimizersConfig optimizers;
    optimizers.groups = {optimizer_group(OptimizerKind::muon, {"*"})};
    const auto exchanges = [&](Strategy strategy, const Mesh& mesh, const char* name) {
        const Ranks ranks(mesh, {.strategy = strategy, .bucket_bytes = 1});
        const BucketLayout layout(table, bucket_rules(ranks, table, optimizers));
        Lines found;
        for (const BucketCollectives& row : step_collectives(layout, ranks, DType::bf16))
            for (const StepCollective& c : row.collectives)
                if (row.name == name && c.kind == Collective::all_to_all)
                    found.push_back(fmt::format("{} of {} over {}, {} bytes, {} sent", name_of(c.kind),
                                                c.group_size, c.axes.describe(), c.payload_bytes,
                                                c.sent_bytes));
        EXPECT_TRUE(found.empty() || (found.size() == 2 && found[0] == found[1])) << "both ways";
        return found.empty() ? "" : found.front();
    };
    using enum Strategy;
    const Mesh tensor({1, 1, 1, 2}), both({1, 2, 1, 2}), copies({2, 2, 1, 2});
    EXPECT_EQ(exchanges(zero1, tensor, "a.out"), "all_to_all of 2 over tensor, 240 bytes, 60 sent");
    EXPECT_EQ(exchanges(zero1, tensor, "a.mix"), "");
    EXPECT_EQ(exchanges(ddp, tensor, "a.out"), "all_to_all of 2 over tensor, 240 bytes, 60 sent");
    for (const Mesh& mesh : {both, copies}) {
        EXPECT_EQ(exchanges(zero2, mesh, "a.out"), "all_to_all of 4 over shard x tensor, 240 bytes, 44 sent");
        EXPECT_EQ(exchanges(zero2, mesh, "a.mix"), "all_to_all of 2 over shard, 100 bytes, 32 sent");
    }
    EXPECT_EQ(exchanges(ddp, copies, "a.out"),
              "all_to_all of 8 over replicate x shard x tensor, 240 bytes, 26 sent");
}

// L blocks and two end units (embeddings, head), one microbatch. Gathers: L+2 before forward, and before backward L+1
// (the embeddings are not read again), L if one is kept, or none. Reductions: L+2. The vectors of all units are one
// more bucket, if there are any.
TEST(StepCollectivesTest, Zero3CountsMatchSpec) {
    constexpr int kBlocks = 3;
    const auto count = [&](Reshard reshard, Collective kind, When when) {
        return Planned(sharing_of(Strategy::zero3, {}, reshard), Mesh({1, 4, 1, 1}), OptimizerKind::muon)
            .count(kind, when);
    };
    for (const Reshard reshard : {Reshard::yes, Reshard::except_last}) {
        EXPECT_EQ(count(reshard, Collective::all_gather, When::before_forward), kBlocks + 2);
        EXPECT_EQ(count(reshard, Collective::reduce_scatter, When::every_microbatch), kBlocks + 2);
    }
    EXPECT_EQ(count(Reshard::yes, Collective::all_gather, When::before_backward), kBlocks + 1);
    EXPECT_EQ(count(Reshard::except_last, Collective::all_gather, When::before_backward), kBlocks);
    EXPECT_EQ(count(Reshard::no, Collective::all_gather, When::before_backward), 0);
    EXPECT_EQ(count(Reshard::no, Collective::all_gather, When::after_step), kBlocks + 2);
    // One group, tied: embeddings, blocks, and the vectors of all units.
    const Planned vectors(sharing_of(Strategy::zero3, {}, Reshard::yes), Mesh({1, 4, 1, 1}),
                          OptimizerKind::adamw, Planned::small_model("gpt2"));
    EXPECT_EQ(vectors.count(Collective::all_gather, When::before_forward), 1 + kBlocks + 1);
}

// 124M parameters under Muon with three embedding tables. The tables' gradients are always complete last.
TEST(StepCollectivesTest, MuonScalesTo1024Ranks) {
    const ModelConfig model =
        model_of("modern", {.layers = 12, .width = 768, .heads = 6, .vocabulary = 50304},
                 with_tables({.layers = 12, .values = 2}));
    for (const int ranks : {8, 64, 1024}) {
        const Planned planned(sharing_of(Strategy::zero1), Mesh({1, ranks, 1, 1}), OptimizerKind::muon,
                              model);
        double sent = 0, early = 0, late = 0;
        for (const double kind : step_wire_bytes(planned.rows, 1)) sent += kind;
        const double formula = static_cast<double>(planned.table.numel()) * (4 + 2) * (ranks - 1) / ranks;
        EXPECT_LT(sent, 1.1 * formula) << ranks << " ranks";
        EXPECT_GT(sent, formula);
        // late: elements that the end of backward through the first block waits for.
        for (const Bucket& bucket : planned.layout.all()) {
            const Parameter& first = bucket.first();
            if (first.unit() > 0) (first.unit() == 1 ? late : early) += static_cast<double>(bucket.count);
        }
        EXPECT_LT(late, 0.2 * (early + late)) << ranks << " ranks";
    }
}

TEST(BucketTargetTest, AdvisesShardGroupsForManyRanks) {
    const Sharing sharing = sharing_of(Strategy::zero1);
    constexpr int64_t kElements = 124 << 20;  // buckets of 31 MiB
    EXPECT_EQ(ranks_that_fit(sharing, 8, kElements), 8);
    EXPECT_EQ(ranks_that_fit(sharing, 64, kElements), 64);
    EXPECT_EQ(ranks_that_fit(sharing, 1024, kElements), 64);
    EXPECT_EQ(ranks_that_fit(sharing, 96, 8 << 20), 8) << "of 2 MiB";
}

TEST(BucketTargetTest, ScalesWithRanksAndKeepsSeveralBuckets) {
    Sharing sharing = sharing_of(Strategy::zero1);
    EXPECT_EQ(bucket_target(sharing, 1, 1 << 30), 0) << "nothing is sent";
    EXPECT_EQ(bucket_target(sharing, 8, 1 << 30), 8 * (512 << 10) / 4);
    EXPECT_EQ(bucket_target(sharing, 1024, 1 << 30), (1 << 30) / 16) << "at most a 16th";
    sharing.bucket_bytes = 4000;
    EXPECT_EQ(bucket_target(sharing, 8, 1 << 30), 1000);
    sharing.bucket_bytes = 1;
    EXPECT_EQ(bucket_target(sharing, 8, 1 << 30), 1) << "each parameter by itself";
}

TEST(NetworkModelTest, LatencyAndBandwidth) {
    const NetworkModel network{1e-3, 1e6};
    EXPECT_DOUBLE_EQ(network.seconds({wire_bytes(Collective::reduce_scatter, 4, 4000), 4}), 1e-3 + 3e-3);
    EXPECT_DOUBLE_EQ(network.seconds({wire_bytes(Collective::all_reduce, 4, 4000), 4}), 1e-3 + 6e-3);
    EXPECT_DOUBLE_EQ(network.seconds({0, 4}), 1e-3);
    EXPECT_EQ(network.seconds({4000, 1}), 0);
    EXPECT_DOUBLE_EQ((NetworkModel{1e-3, 0}).seconds({4000, 4}), 1e-3);
}

}  // namespace speedrun::testing::step_collectives_test
