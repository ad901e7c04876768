// The rule of placement, the table of strategies, and refused settings.
#include "train/sharding/placement.h"
#include "tests/errors.h"

#include <gtest/gtest.h>

#include "kernels/device/error.h"

namespace speedrun::testing::placement_test {

constexpr Placement kReplicate = Placement::replicate(), kShard = Placement::shard(0),
                    kPartial = Placement::partial();

Parameter parameter_of(std::vector<Dimension> dimensions, DimensionSet summed = {Dimension::tokens}) {
    Parameter parameter;
    parameter.dimensions = std::move(dimensions);
    parameter.shape.assign(parameter.dimensions.size(), 8);
    parameter.summed = summed;
    return parameter;
}

void expect_refused(const Sharing& sharing, const std::string& fragment) {
    expect_error(ExitCode::usage, {fragment}, [&] { resolve_sharing(sharing); });
}

TEST(PlacementTest, CollectiveFollowsFromPlacementChange) {
    EXPECT_EQ(collective_between(kPartial, kShard), Collective::reduce_scatter);
    EXPECT_EQ(collective_between(kPartial, kReplicate), Collective::all_reduce);
    EXPECT_EQ(collective_between(kShard, kReplicate), Collective::all_gather);
    EXPECT_EQ(collective_between(kShard, Placement::shard(1)), Collective::all_to_all);
    EXPECT_EQ(collective_between(kReplicate, kShard), std::nullopt);  // a local slice
    for (const Placement same : {kReplicate, kShard, kPartial})
        EXPECT_EQ(collective_between(same, same), std::nullopt);
    EXPECT_THROW(collective_between(kReplicate, kPartial), Error);
    EXPECT_THROW(collective_between(kShard, kPartial), Error);
}

// The table of gradient collectives by cell: on the shard axis, then on replicate.
TEST(PlacementTest, StrategyTableMatchesSpec) {
    struct Row {
        Strategy strategy;
        Accumulate accumulate;
        Placement stored, accumulated, state;
    };
    const std::vector<Row> table{
        {Strategy::ddp, Accumulate::local, kReplicate, kPartial, kReplicate},
        {Strategy::zero1, Accumulate::local, kReplicate, kPartial, kShard},
        {Strategy::zero2, Accumulate::reduce_scatter, kReplicate, kShard, kShard},
        {Strategy::zero3, Accumulate::reduce_scatter, kShard, kShard, kShard},
        {Strategy::zero3, Accumulate::local, kShard, kPartial, kShard},
    };
    for (const Row& row : table) {
        const Sharing sharing = resolve_sharing({.strategy = row.strategy, .accumulate = row.accumulate});
        const ParameterPlacement place = place_parameter(sharing, parameter_of({Dimension::width}));
        for (const Axis axis : {Axis::shard, Axis::context}) {
            const auto i = static_cast<size_t>(axis);
            EXPECT_EQ(place.stored[i], row.stored) << word_of(row.strategy);
            EXPECT_EQ(place.computed[i], kReplicate);
            EXPECT_EQ(place.gradient[i], kPartial);
            EXPECT_EQ(place.accumulated[i], row.accumulated) << word_of(row.strategy);
            EXPECT_EQ(place.state[i], row.state) << word_of(row.strategy);
        }
        const auto r = static_cast<size_t>(Axis::replicate);
        EXPECT_EQ(place.stored[r], kReplicate);
        EXPECT_EQ(place.gradient[r], kPartial);
        EXPECT_EQ(place.accumulated[r], kPartial) << "reduced over replicas before the last microbatch";
        EXPECT_EQ(place.state[r], kReplicate);
    }
}

// Expected placements by hand, per axis. A cut dimension of the parameter stays sharded. A cut dimension of the sum
// gives Partial. Otherwise Replicate: a sum would multiply the gradient.
TEST(PlacementTest, GradientsFollowFromDimensions) {
    using enum Dimension;
    const struct {
        const char* name;
        Parameter parameter;
        Placement on_tensor, on_data;
    } cases[] = {
        {"products from the width", parameter_of({hidden, width}), Placement::shard(0), kPartial},
        {"products to the width", parameter_of({width, head_width}), Placement::shard(1), kPartial},
        {"biases of cut matrices", parameter_of({hidden}), Placement::shard(0), kPartial},
        {"biases and gains of the width", parameter_of({width}), kReplicate, kPartial},
        {"biases and gains with shared tokens", parameter_of({width}, {own_tokens}), kPartial, kPartial},
        {"tables", parameter_of({vocabulary, width}), Placement::shard(0), kPartial},
        {"tables of values", parameter_of({rows, head_width}), Placement::shard(1), kPartial},
        {"matrices of whole attention", parameter_of({all_width, width}), kReplicate, kPartial},
        {"numbers of its heads", parameter_of({all_heads}, {tokens, all_width}), kReplicate, kPartial},
        {"tables of n-grams", parameter_of({rows, columns}), Placement::shard(1), kPartial},
        {"positions", parameter_of({positions, width}), kReplicate, kPartial},
        {"gates of heads", parameter_of({heads, width}), Placement::shard(0), kPartial},
        {"a number for the width", parameter_of({numbers}, {tokens, width}), kReplicate, kPartial},
        {"one with shared tokens", parameter_of({numbers}, {own_tokens, width}), kPartial, kPartial},
        {"a number for values of heads", parameter_of({numbers}, {tokens, head_width}), kPartial, kPartial},
        {"a number of no tokens", parameter_of({numbers}, {width}), kReplicate, kReplicate},
    };
    for (const auto& c : cases) {
        const ParameterPlacement place =
            place_parameter(resolve_sharing({.strategy = Strategy::zero2}), c.parameter);
        const auto on = [](const AxisPlacements& placements, Axis axis) {
            return placements[static_cast<size_t>(axis)];
        };
        for (const Axis axis : {Axis::replicate, Axis::shard, Axis::context}) {
            EXPECT_EQ(on(place.gradient, axis), c.on_data) << c.name;
            EXPECT_EQ(on(place.computed, axis), kReplicate) << c.name;
        }
        EXPECT_EQ(on(place.gradient, Axis::tensor), c.on_tensor) << c.name;
        const Placement values = c.on_tensor.kind == Placement::Kind::shard ? c.on_tensor : kReplicate;
        for (const AxisPlacements& at : {place.stored, place.computed, place.state})
            EXPECT_EQ(on(at, Axis::tensor), values) << c.name;
        EXPECT_EQ(on(place.accumulated, Axis::tensor), on(place.gradient, Axis::tensor)) << c.name;
    }
}

TEST(PlacementTest, DefaultsFollowStrategy) {
    EXPECT_EQ(resolve_sharing({.strategy = Strategy::ddp}).accumulate, Accumulate::local);
    EXPECT_EQ(resolve_sharing({.strategy = Strategy::zero2}).accumulate, Accumulate::reduce_scatter);
    EXPECT_EQ(resolve_sharing({.strategy = Strategy::zero3}).reshard_after_forward, Reshard::except_last);
    EXPECT_EQ(resolve_sharing({.strategy = Strategy::zero1}).reshard_after_forward, Reshard::no);
}

TEST(PlacementTest, IllegalCombinationErrorsNameReason) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
        expect_refused({.strategy = strategy, .accumulate = Accumulate::reduce_scatter},
                       "keeps gradients full until the last microbatch");
    }
    expect_refused({.strategy = Strategy::zero2, .accumulate = Accumulate::local},
                   "zero2 keeps no full gradients between microbatches");

    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2}) {
        for (const Reshard reshard : {Reshard::yes, Reshard::except_last}) {
            expect_refused({.strategy = strategy, .reshard_after_forward = reshard},
                           "stores parameters full: there is nothing to free");
        }
    }
    EXPECT_NO_THROW(resolve_sharing({.optimizer_step = OptimizerStep::in_backward}));
    expect_refused({.launch = Launch::after_backward, .optimizer_step = OptimizerStep::in_backward},
                   "no gradient is reduced while backward runs");
    expect_refused({.reduce_dtype = DType::i32}, "f32 or bf16, not i32");
    expect_refused({.bucket_bytes = -1}, "parallel.bucket_bytes is -1");
}

}  // namespace speedrun::testing::placement_test
