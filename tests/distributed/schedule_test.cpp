// Collectives derived for single parameters and for a model, with the bytes worked out by hand.
#include "train/distributed/schedule.h"

#include <gtest/gtest.h>

#include "kernels/device/error.h"

namespace speedrun::testing {
namespace {

Parameter parameter(std::vector<int64_t> shape, int unit = 1, int id = 0) {
    Parameter p;
    p.id = id;
    p.name = fmt::format("p{}", id);
    p.shape = std::move(shape);
    p.unit = unit;
    return p;
}

ParallelPlan plan_of(Strategy strategy, std::optional<Accumulate> accumulate = {},
                     std::optional<Reshard> reshard = {}) {
    ParallelPlan plan;
    plan.strategy = strategy;
    plan.accumulate = accumulate;
    plan.reshard_after_forward = reshard;
    plan.compute_dtype = DType::bf16;
    return resolve_plan(plan);
}

// "kind/axes/payload bytes/when", for short.
std::vector<std::string> lines(const std::vector<PlannedCollective>& planned) {
    std::vector<std::string> all;
    for (const PlannedCollective& c : planned)
        all.push_back(fmt::format("{} {} {} {} {}", name_of(c.kind), c.axes.describe(), name_of(c.dtype),
                                  c.payload_bytes, name_of(c.when)));
    return all;
}

std::vector<std::string> lines(const Parameter& p, const ParallelPlan& plan, const Mesh& mesh) {
    return lines(parameter_collectives(p, plan, mesh, 4));
}

using Lines = std::vector<std::string>;

// vocab 257 x width 48 over 8 ranks: 33 rows each, padded to 264; f32 264*48*4 = 50688, bf16 half of that.
TEST(ScheduleTest, EveryStrategyOnUnevenRows) {
    const Parameter p = parameter({257, 48});
    const Mesh mesh({1, 8, 1, 1});
    EXPECT_EQ(lines(p, plan_of(Strategy::ddp), mesh),
              Lines({"all_reduce shard f32 49344 last microbatch"}));  // unpadded
    EXPECT_EQ(lines(p, plan_of(Strategy::zero1), mesh),
              Lines({"reduce_scatter shard f32 50688 last microbatch",
                     "all_gather shard bf16 25344 after the step"}));
    EXPECT_EQ(lines(p, plan_of(Strategy::zero2), mesh),
              Lines({"reduce_scatter shard f32 50688 every microbatch",
                     "all_gather shard bf16 25344 after the step"}));
    EXPECT_EQ(
        lines(p, plan_of(Strategy::zero3), mesh),
        Lines({"all_gather shard bf16 25344 before forward", "all_gather shard bf16 25344 before backward",
               "reduce_scatter shard f32 50688 every microbatch"}));
    EXPECT_EQ(lines(p, plan_of(Strategy::zero3, Accumulate::local, Reshard::no), mesh),
              Lines({"all_gather shard bf16 25344 before forward",
                     "reduce_scatter shard f32 50688 last microbatch"}));
    const auto planned = parameter_collectives(p, plan_of(Strategy::zero1), mesh, 4);
    EXPECT_EQ(planned[0].padding_bytes, 7 * 48 * 4);
    EXPECT_EQ(planned[0].wire_bytes(), 50688.0 * 7 / 8);
    EXPECT_EQ(planned[0].describe(), "reduce_scatter over shard (8 ranks), f32, 0.05 MiB, last microbatch");
}

// R 4 x S 8: what is summed over the replicas is one shard, 33 rows, and only after the last microbatch.
TEST(ScheduleTest, HsdpInBothModes) {
    const Parameter p = parameter({257, 48});
    const Mesh mesh({4, 8, 1, 1});
    const std::string gather = "all_gather shard bf16 25344 before forward",
                      again = "all_gather shard bf16 25344 before backward",
                      copies = "all_reduce replicate f32 6336 last microbatch";
    EXPECT_EQ(lines(p, plan_of(Strategy::zero3, Accumulate::reduce_scatter), mesh),
              Lines({gather, again, "reduce_scatter shard f32 50688 every microbatch", copies}));
    EXPECT_EQ(lines(p, plan_of(Strategy::zero3, Accumulate::local), mesh),
              Lines({gather, again, "reduce_scatter shard f32 50688 last microbatch", copies}));
    EXPECT_EQ(lines(p, plan_of(Strategy::zero1), mesh),
              Lines({"reduce_scatter shard f32 50688 last microbatch", copies,
                     "all_gather shard bf16 25344 after the step"}));
    EXPECT_EQ(lines(p, plan_of(Strategy::ddp), mesh),
              Lines({"all_reduce replicate x shard f32 49344 last microbatch"}));
}

TEST(ScheduleTest, OneRankNeedsNothing) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3})
        EXPECT_EQ(lines(parameter({257, 48}), plan_of(strategy), Mesh()), Lines()) << row_of(strategy).name;
}

TEST(ScheduleTest, ContextFoldsIntoShard) {
    EXPECT_EQ(lines(parameter({257, 48}), plan_of(Strategy::zero1), Mesh({1, 4, 2, 1})),
              Lines({"reduce_scatter shard x context f32 50688 last microbatch",
                     "all_gather shard x context bf16 25344 after the step"}));
}

TEST(ScheduleTest, TensorCutsMatricesAndSumsNormsUnderSequenceParallelism) {
    const Mesh mesh({1, 2, 1, 2});
    Parameter matrix = parameter({96, 48}), norm = parameter({48});
    matrix.tensor_parallel_dim = 1;  // 96 x 24 on each
    norm.full_precision = true;
    ParallelPlan plan = plan_of(Strategy::zero1);
    EXPECT_EQ(lines(matrix, plan, mesh), Lines({"reduce_scatter shard f32 9216 last microbatch",
                                                "all_gather shard bf16 4608 after the step"}));
    EXPECT_EQ(lines(norm, plan, mesh), Lines({"reduce_scatter shard f32 192 last microbatch",
                                              "all_gather shard f32 192 after the step"}));
    plan.sequence_parallel = true;
    EXPECT_EQ(lines(norm, plan, mesh), Lines({"all_reduce tensor f32 192 last microbatch",
                                              "reduce_scatter shard f32 192 last microbatch",
                                              "all_gather shard f32 192 after the step"}));
    EXPECT_EQ(lines(matrix, plan, mesh).size(), 2u);
}

TEST(ScheduleTest, ScalarsAndEmptyShapes) {
    const Mesh mesh({1, 8, 1, 1});
    EXPECT_EQ(lines(parameter({}), plan_of(Strategy::zero2), mesh),
              Lines({"reduce_scatter shard f32 32 every microbatch",
                     "all_gather shard bf16 16 after the step"}));  // 1 of 8 is real
    EXPECT_EQ(parameter_collectives(parameter({}), plan_of(Strategy::zero2), mesh, 4)[0].padding_bytes, 28);
    Parameter wrong = parameter({48});
    wrong.tensor_parallel_dim = 1;
    EXPECT_THROW(lines(wrong, plan_of(Strategy::zero2), mesh), Error);
}

// What the derivation does not know must not be a silent skip.
TEST(ScheduleTest, UnknownChangeThrows) {
    const Mesh mesh({1, 2, 1, 2});
    AxisPlacements full, rows, columns, tensor_rows;
    rows[static_cast<size_t>(Axis::shard)] = Placement::shard(0);
    columns[static_cast<size_t>(Axis::shard)] = Placement::shard(1);
    tensor_rows[static_cast<size_t>(Axis::tensor)] = Placement::shard(0);
    const auto derive = [&](const AxisPlacements& from, const AxisPlacements& to) {
        return collectives_between(from, to, {8, 8}, mesh, DType::f32, When::after_step);
    };
    EXPECT_EQ(derive(rows, full).size(), 1u);
    EXPECT_THROW(derive(rows, columns), Error);
    EXPECT_THROW(derive(tensor_rows, full), Error);
}

// L blocks + root, one microbatch: forward AG L+1; backward AG L+1, L or 0; RS L+1.
TEST(ScheduleTest, Zero3CountsOfTheSpec) {
    constexpr int kBlocks = 3;
    std::vector<Parameter> parameters;
    for (int unit = 1; unit <= kBlocks + 1; ++unit)
        parameters.push_back(parameter({256, 256}, unit, unit - 1));
    const auto count = [&](Reshard reshard, Collective kind, When when) {
        int64_t found = 0;
        for (const ScheduleRow& row :
             build_schedule(parameters, plan_of(Strategy::zero3, {}, reshard), Mesh({1, 4, 1, 1})))
            for (const PlannedCollective& c : row.collectives) found += c.kind == kind && c.when == when;
        return found;
    };
    for (const Reshard reshard : {Reshard::yes, Reshard::except_last, Reshard::no}) {
        EXPECT_EQ(count(reshard, Collective::all_gather, When::before_forward), kBlocks + 1);
        EXPECT_EQ(count(reshard, Collective::reduce_scatter, When::every_microbatch), kBlocks + 1);
    }
    EXPECT_EQ(count(Reshard::yes, Collective::all_gather, When::before_backward), kBlocks + 1);
    EXPECT_EQ(count(Reshard::except_last, Collective::all_gather, When::before_backward), kBlocks);
    EXPECT_EQ(count(Reshard::no, Collective::all_gather, When::before_backward), 0);
}

// Volume per rank and step for P bytes over N ranks: RS (N-1)/N P, AG the same, AR twice.
TEST(ScheduleTest, BytesPerStep) {
    const std::vector<Parameter> parameters{parameter({256, 512}), parameter({512, 256}, 2, 1)};
    const Mesh mesh({1, 4, 1, 1});
    const double full = 2 * 256 * 512 * 4.0;
    const auto bytes = [&](const ParallelPlan& plan, int microbatches) {
        return step_wire_bytes(build_schedule(parameters, plan, mesh), microbatches);
    };
    const auto at = [](Collective kind) { return static_cast<size_t>(kind); };
    EXPECT_EQ(bytes(plan_of(Strategy::ddp), 3)[at(Collective::all_reduce)], full * 2 * 3 / 4);
    EXPECT_EQ(bytes(plan_of(Strategy::zero1), 3)[at(Collective::reduce_scatter)], full * 3 / 4);
    EXPECT_EQ(bytes(plan_of(Strategy::zero1), 3)[at(Collective::all_gather)], full / 2 * 3 / 4);
    EXPECT_EQ(bytes(plan_of(Strategy::zero2), 3)[at(Collective::reduce_scatter)], 3 * full * 3 / 4);
    EXPECT_EQ(bytes(plan_of(Strategy::zero3, {}, Reshard::yes), 3)[at(Collective::all_gather)],
              3 * 2 * full / 2 * 3 / 4);
}

TEST(ScheduleTest, SmallParametersShareOneRowPerUnit) {
    std::vector<Parameter> parameters{parameter({256, 256}, 1, 0), parameter({48}, 1, 1),
                                      parameter({100}, 1, 2),      parameter({48}, 2, 3),
                                      parameter({127, 128}, 2, 4),  // 65024 bytes: below 64 KiB
                                      parameter({128, 128}, 2, 5),  // exactly 64 KiB: by itself
                                      parameter({7}, 2, 6)};
    parameters[6].full_precision = true;
    const Mesh mesh({1, 8, 1, 1});
    ParallelPlan plan = plan_of(Strategy::zero1);
    auto rows = build_schedule(parameters, plan, mesh);
    ASSERT_EQ(rows.size(), 5u);
    EXPECT_EQ(rows[1].name, "unit 1: 2 small parameters");
    EXPECT_EQ(rows[1].parameters, std::vector<int>({1, 2}));
    EXPECT_EQ(lines(rows[1].collectives),
              Lines({"reduce_scatter shard f32 608 last microbatch",  // (48 + 104) * 4
                     "all_gather shard bf16 304 after the step"}));
    EXPECT_EQ(rows[1].collectives[0].padding_bytes, 16);
    EXPECT_EQ(rows[2].parameters, std::vector<int>({3, 4}));
    EXPECT_EQ(rows[3].name, "p5");
    EXPECT_EQ(rows[4].name, "p6");  // gathered in another type

    // Parameters that step at another pace do not travel together.
    rows = build_schedule(parameters, plan, mesh, [](const Parameter& p) { return p.id % 2; });
    EXPECT_EQ(rows[1].parameters, std::vector<int>({1}));
    plan.coalesce_below_bytes = 0;
    EXPECT_EQ(build_schedule(parameters, plan, mesh).size(), parameters.size());
}

TEST(NetworkModelTest, LatencyAndBandwidth) {
    const NetworkModel network{1e-3, 1e6};
    EXPECT_DOUBLE_EQ(network.seconds(Collective::reduce_scatter, 4, 4000), 1e-3 + 3e-3);
    EXPECT_DOUBLE_EQ(network.seconds(Collective::all_reduce, 4, 4000), 1e-3 + 6e-3);
    EXPECT_DOUBLE_EQ(network.seconds(Collective::barrier, 4, 0), 1e-3);
    EXPECT_EQ(network.seconds(Collective::all_reduce, 1, 4000), 0);
    EXPECT_DOUBLE_EQ((NetworkModel{1e-3, 0}).seconds(Collective::all_reduce, 4, 4000), 1e-3);
}

}  // namespace
}  // namespace speedrun::testing
