// The order of items of persistent attention blocks: sections of heads, which small tensors never have more than one of.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kernels/cuda/ops/attention_wgmma.cuh"

namespace speedrun::testing {
namespace {

TEST(AttentionItems, CoverEachTileOnceSectionBySection) {
    using namespace attention;
    for (const int heads : {1, 2, 5, 6}) {
        for (int section = 1; section <= heads; ++section) {
            for (const int sequences : {1, 3}) {
                for (const int tiles : {1, 2, 4}) {
                    Problem<false> p{};
                    p.num_sequences = sequences;
                    p.length = (tiles - 1) * kWgmmaOwned + 1;
                    p.head_dim = 64;
                    const ItemOrder order{heads, section, heads * sequences * tiles};
                    std::set<std::tuple<int64_t, int, int>> seen;
                    int64_t last_section = 0;
                    for (int i = 0; i < order.count; ++i) {
                        const Item item = item_at(p, order, i);
                        const int64_t head = item.where.head;
                        ASSERT_TRUE(head >= 0 && head < heads && item.where.tile >= 0 &&
                                    item.where.tile < tiles && item.sequence >= 0 &&
                                    item.sequence < sequences);
                        EXPECT_GE(head / section, last_section);
                        last_section = head / section;
                        EXPECT_EQ(item.where.column, head * p.head_dim);
                        EXPECT_EQ(item.where.first.key, int64_t{item.sequence} * p.length);
                        EXPECT_TRUE(seen.emplace(head, item.where.tile, item.sequence).second) << i;
                    }
                    EXPECT_EQ(seen.size(), static_cast<size_t>(order.count));
                    EXPECT_EQ(item_at(p, order, order.count - 1).where.tile, 0)
                        << "the last item has the least work";
                    EXPECT_EQ(item_of_keys(p, order, order.count - 1).where.tile, tiles - 1)
                        << "late keys have the least work";
                }
            }
        }
    }
}

}  // namespace
}  // namespace speedrun::testing
