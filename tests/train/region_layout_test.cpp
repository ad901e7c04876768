// Every element of every parameter lies in exactly one region, where the parameter says it lies.
#include "train/model/region_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "train/optim/optimizer_set.h"

namespace speedrun::testing {
namespace {

ModelConfig odd_model() {
    ModelConfig model;
    model.preset = "gpt2";
    model.apply_preset();
    model.num_layers = 3;
    model.model_dim = 48;
    model.num_heads = 3;
    model.vocab_size = 257;
    return model;
}

RegionRules rules_for(const ParameterTable& table, int parts, int index = 0) {
    RegionRules rules;
    rules.parts = parts;
    rules.index = index;
    rules.coalesce_below = 1000;
    for (const Parameter& p : table.all())
        rules.group_of.push_back(p.is_matrix() && p.unit > 0 && p.unit < 4 ? 0 : 1);
    rules.whole_matrix = {true, false};
    return rules;
}

TEST(RegionLayoutTest, CoversEveryElementOnce) {
    const ParameterTable table(odd_model(), 16);
    for (const int parts : {1, 2, 3, 4, 8}) {
        std::map<int, std::set<int64_t>> seen;  // by parameter: elements
        for (int index = 0; index < parts; ++index) {
            const RegionLayout layout(table, rules_for(table, parts, index));
            int64_t end = 0;
            for (const Region& region : layout.all()) {
                EXPECT_GE(region.offset, end) << "regions overlap";
                end = region.offset + layout.padded(region);
                EXPECT_LE(region.count, layout.padded(region));
                for (const Piece& piece : layout.part_pieces(region)) {
                    const Parameter& p = *piece.parameter;
                    EXPECT_LE(piece.in_region + piece.count, layout.valid(region));
                    EXPECT_EQ(region.offset + index * region.part + piece.in_region,
                              layout.offset_of(p) + piece.in_parameter)
                        << p.name << " is not contiguous";
                    for (int64_t i = 0; i < piece.count; ++i)
                        EXPECT_TRUE(seen[p.id].insert(piece.in_parameter + i).second) << p.name << " twice";
                }
            }
            EXPECT_EQ(end, layout.elements());
        }
        for (const Parameter& p : table.all())
            EXPECT_EQ(static_cast<int64_t>(seen[p.id].size()), p.numel()) << p.name << " over " << parts;
    }
}

TEST(RegionLayoutTest, PartsOfABankAreWholeMatrices) {
    const ParameterTable table(odd_model(), 16);
    for (const int parts : {2, 3, 8}) {
        int64_t matrices = 0, expected = 0;
        for (const Parameter& p : table.all())
            if (p.is_matrix() && p.unit > 0 && p.unit < 4) expected += p.matrices;
        for (int index = 0; index < parts; ++index) {
            const RegionLayout layout(table, rules_for(table, parts, index));
            for (const Region& region : layout.all()) {
                if (region.group != 0) continue;
                EXPECT_EQ(region.part, region.rows * region.cols);
                EXPECT_EQ(layout.valid(region) % region.part, 0) << region.name();
                matrices += layout.valid(region) / region.part;
            }
        }
        EXPECT_EQ(matrices, expected) << "each matrix has one owner";
    }
}

TEST(RegionLayoutTest, SmallParametersOfAUnitTravelTogether) {
    const ParameterTable table(odd_model(), 16);
    const RegionLayout together(table, rules_for(table, 4)), alone(table, rules_for(table, 1));
    EXPECT_EQ(alone.size(), table.size());
    EXPECT_LT(together.size(), table.size());
    for (const Region& region : together.all()) {
        for (const Piece& piece : region.pieces) {
            const Parameter& first = *region.pieces[0].parameter;
            EXPECT_TRUE(region.rows > 0 || piece.parameter->unit == first.unit) << region.name();
            EXPECT_EQ(piece.parameter->full_precision, region.full_precision);
        }
    }
}

TEST(RegionLayoutTest, BackwardCompletesTheLastDeclaredFirst) {
    const ParameterTable table(odd_model(), 16);
    const RegionLayout layout(table, rules_for(table, 4));
    const std::vector<int> order = layout.backward_order();
    EXPECT_EQ(order.size(), layout.all().size());
    for (size_t i = 1; i < order.size(); ++i)
        EXPECT_GE(layout[order[i - 1]].first_parameter(), layout[order[i]].first_parameter());
}

}  // namespace
}  // namespace speedrun::testing
