// Columns of a batch by hand: order of the computation, and columns of ranks that share rows or tables.
// Covers: data/columns/key_places.cpp
#include "data/columns/column.h"

#include <gtest/gtest.h>

#include "data/columns/key_places.h"
#include "data/columns/own_tokens.h"
#include "data/columns/pairs.h"
#include "kernels/device/error.h"

namespace speedrun::column_test {

using Ids = std::vector<int32_t>;

Batch two_rows() {
    Batch batch;
    batch.tokens = {9, 1, 2, 9, 3, 4, 9, 5};
    batch.targets = {1, 2, 9, 3, -1, 9, 5, -1};
    return batch;
}

TEST(ColumnTest, CompleteFindsDocumentsAndCountsTargets) {
    Batch batch = two_rows();
    complete(batch, {}, {.sequence_length = 4, .separator = 9});
    EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
    EXPECT_EQ(batch.first_key, (Ids{0, 0, 0, 3, 4, 4, 6, 6}));
    EXPECT_EQ(batch.valid_targets, 6);
    EXPECT_TRUE(batch.chunk_first_keys.empty());
    batch = two_rows();
    complete(batch, {}, {.sequence_length = 4});
    EXPECT_EQ(batch.first_key, (Ids{0, 0, 0, 0, 4, 4, 4, 4})) << "each row is one document";
    batch.first_key[7] = 7;
    complete(batch, {}, {.sequence_length = 4, .separator = 9});
    EXPECT_EQ(batch.first_key, (Ids{0, 0, 0, 0, 4, 4, 4, 7})) << "first keys of the caller stay";
}

TEST(ColumnTest, ABatchHasTheListedColumnsAlone) {
    Batch batch = two_rows();
    const std::vector<Column> pairs{paired_positions_column(), paired_first_key_column()};
    complete(batch, pairs, {.sequence_length = 4, .separator = 9});
    EXPECT_EQ(pairs[0].of(batch), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(pairs[1].of(batch), (Ids{0, 0, 0, 0, 0, 0, 6, 6, 8, 8, 8, 8, 12, 12, 12, 12}));
    const Column own = own_tokens_column({.first = 2, .count = 3});
    complete(batch, std::vector{own}, {.sequence_length = 4});
    EXPECT_EQ(own.of(batch), (Ids{3, 3, 0, 3, 1, 2, 3, 3}));
    EXPECT_THROW(pairs[0].of(batch), Error);
    EXPECT_EQ(tokens_column().of(batch), batch.tokens);
}

// Rank 0 of two has chunks 0 and 3 of rows of 8 tokens: positions 0, 1, 6, 7. With windows of 3 keys it sees 0, 1 and
// 4 to 7.
TEST(ColumnTest, KeyPlacesCountAmongTheKeptKeys) {
    const ContextPart part{.size = 2, .index = 0};
    const KeyPlaces places{.window = 3, .kept = KeptKeys(part, {.sequence_length = 8, .window = 3})};
    ASSERT_EQ(places.kept.count(), 6);
    const std::vector<Column> columns{last_key_column(places), first_kept_key_column(places)};
    Batch batch;
    batch.tokens = batch.targets = Ids(16, 1);
    batch.tokens[6] = 9;
    complete(batch, columns, {.sequence_length = 8, .separator = 9, .part = part});
    EXPECT_EQ(batch.positions, (Ids{0, 1, 6, 7, 0, 1, 6, 7}));
    EXPECT_EQ(batch.first_key, (Ids{0, 0, 6, 6, 8, 8, 8, 8}));
    EXPECT_EQ(columns[0].name, "place in window 3");
    EXPECT_EQ(columns[0].of(batch), (Ids{0, 1, 4, 5, 0, 1, 4, 5}));
    EXPECT_EQ(columns[1].name, "first_key in window 3");
    EXPECT_EQ(columns[1].of(batch), (Ids{0, 0, 4, 4, 6, 6, 8, 9}));
}

}  // namespace speedrun::column_test
