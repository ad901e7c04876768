// Owners of rows, and upper bounds of exchanged rows, computed by hand.
#include "train/sharding/row_owners.h"

#include <gtest/gtest.h>

namespace speedrun::testing::row_owners_test {

struct Case {
    ParameterTable table;
    Bucket bucket;

    // A table of 10 rows of 12, in shards of 32 elements. Rows 2 and 5 are cut; the last shard has two rows and a
    // third.
    explicit Case(int64_t max_rows) {
        table.declare("table.weight", {{Dimension::rows, 10}, {Dimension::columns, 12}}, {});
        bucket.parameters = {&table[0]};
        bucket.count = 120;
        bucket.num_shards = 4;
        bucket.shard_size = 32;
        bucket.max_rows = max_rows;
    }
};

TEST(RowOwnersTest, SplitRowHasTwoOwners) {
    const Case c(4);
    const RowOwners owners(c.bucket, false, 4);
    EXPECT_EQ(owners.owned_by(0), (Range{0, 3}));
    EXPECT_EQ(owners.owned_by(1), (Range{2, 4}));
    EXPECT_EQ(owners.owned_by(2), (Range{5, 3}));
    EXPECT_EQ(owners.owned_by(3), (Range{8, 2}));
    EXPECT_EQ(owners.max_packed(), 7) << "4 rows, and one more for each cut";
    EXPECT_EQ(owners.max_received(0), 12);
    EXPECT_EQ(owners.max_received(1), 16);
    EXPECT_EQ(owners.max_received(3), 8);
    EXPECT_EQ(owners.max_sent(), 7) << "none of them its own";
    const std::vector<int32_t> rows{0, 2, 4, 5, 9};
    const auto of_second = rows_in(owners.owned_by(1), rows);
    EXPECT_EQ(std::vector<int32_t>(of_second.begin(), of_second.end()), (std::vector<int32_t>{2, 4, 5}));
}

TEST(RowOwnersTest, SentRowsAreBoundedByOwnedRows) {
    const Case c(10);
    const RowOwners owners(c.bucket, false, 4);
    EXPECT_EQ(owners.max_packed(), 12) << "3, 4, 3 and 2";
    EXPECT_EQ(owners.max_sent(), (9 + 8 + 9 + 10) / 4.0) << "all but its own";
}

TEST(RowOwnersTest, ReplicatedRowsGoToAllRanks) {
    Case c(4);
    c.bucket.num_shards = 1;
    const RowOwners owners(c.bucket, true, 3);
    EXPECT_EQ(owners.owned_by(2), (Range{0, 10}));
    EXPECT_EQ(owners.max_packed(), 4);
    EXPECT_EQ(owners.max_received(1), 12);
    EXPECT_EQ(owners.max_sent(), 8);
}

TEST(RowOwnersTest, EmptyShardsOwnNothing) {
    Case c(4);
    c.bucket.num_shards = 6;
    const RowOwners owners(c.bucket, false, 6);
    EXPECT_EQ(owners.owned_by(5), (Range{0, 0}));
    EXPECT_EQ(owners.max_received(5), 0);
    EXPECT_THROW(RowOwners(c.bucket, false, 4), Error) << "shards of other ranks";
}

}  // namespace speedrun::testing::row_owners_test
