// Masters over all tensor slices and shards equal one rank's masters.
#include "train/sharding/parameter_store.h"

#include <gtest/gtest.h>

#include "tests/each_element.h"
#include "tests/train/cut_table.h"

namespace speedrun::testing::parameter_store_test {

using Values = std::vector<float>;
using Parameters = std::vector<Values>;  // whole parameters, by id

// Copies a rank's masters to their positions in the whole parameters and counts each element. Replicated parameters
// are counted on tensor rank 0 only.
void collect(const ParameterStore& store, Runtime& runtime, Parameters& into,
             std::vector<std::vector<int>>& seen, bool first) {
    runtime.synchronize();
    for (const Bucket& bucket : store.layout().all()) {
        const auto* const shard = store.master_shard(bucket).as<float>();
        for (const Piece& piece : store.layout().shard_pieces(bucket)) {
            const auto id = static_cast<size_t>(piece.parameter->id);
            each_element(*piece.parameter, piece.in_parameter, [&](int64_t at, int64_t element) {
                const auto to = static_cast<size_t>(element);
                into[id][to] = shard[piece.in_shard + at];
                if (!piece.parameter->cut.all() || first) ++seen[id][to];
            });
        }
    }
}

// Masters of all parts x shards ranks after `fill`.
template <class Fill>
Parameters masters(int parts, int shards, Fill&& fill) {
    const ParameterTable whole = cut_table({});
    Parameters values;
    std::vector<std::vector<int>> seen, once;
    for (const Parameter& p : whole.all()) {
        values.emplace_back(static_cast<size_t>(p.numel()));
        seen.emplace_back(values.back().size());
        once.emplace_back(values.back().size(), 1);
    }
    for (int part = 0; part < parts; ++part) {
        const ParameterTable table = cut_table({.size = parts, .index = part});
        for (int shard = 0; shard < shards; ++shard) {
            Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
            BucketRules rules;
            rules.num_shards = shards;
            rules.index = shard;
            rules.target = 40;
            ParameterStore store(table, rules, runtime);
            fill(store);
            collect(store, runtime, values, seen, part == 0);
        }
    }
    EXPECT_EQ(seen, once) << parts << " parts, " << shards << " shards";
    return values;
}

TEST(ParameterStoreTest, InitialValuesDependOnThePlaceInTheWhole) {
    const auto initialize = [](ParameterStore& store) { store.initialize(7); };
    const Parameters expected = masters(1, 1, initialize);
    EXPECT_EQ(expected[1], (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
    for (const int parts : {1, 2, 3, 6})
        for (const int shards : {1, 2, 3, 5})
            EXPECT_EQ(masters(parts, shards, initialize), expected)
                << parts << " parts, " << shards << " shards";
}

TEST(ParameterStoreTest, EachRankTakesItsBoxesOfWholeValues) {
    Parameters expected;
    const ParameterTable whole = cut_table({});
    for (const Parameter& p : whole.all()) {
        expected.emplace_back();
        for (int64_t i = 0; i < p.numel(); ++i)
            expected.back().push_back(static_cast<float>(p.id * 1000 + i));
    }
    for (const int parts : {1, 2, 3})
        for (const int shards : {1, 2, 5})
            EXPECT_EQ(masters(parts, shards, [&](ParameterStore& store) { store.assign(expected); }),
                      expected)
                << parts << " parts, " << shards << " shards";
}

}  // namespace speedrun::testing::parameter_store_test
