// Rows shared by ranks: the union of the parts is the whole, with each token once, for all sizes.
#include "data/context_part.h"

#include <gtest/gtest.h>

#include <numeric>

#include "data/columns/column.h"
#include "kernels/device/error.h"

namespace speedrun::context_part_test {

// Two rows of S tokens, numbered consecutively; a document starts at every fifth.
Batch whole_rows(int64_t S) {
    Batch batch;
    const auto count = static_cast<int32_t>(2 * S);
    batch.tokens.resize(static_cast<size_t>(count));
    std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
    for (int32_t t = 0; t < count; ++t) {
        const auto position = static_cast<int32_t>(t % S);
        batch.targets.push_back(t % 7 == 6 ? -1 : t + 1);
        batch.positions.push_back(position);
        batch.first_key.push_back(t - position % 5);
    }
    batch.valid_targets = count - count / 7;
    batch.step_targets = 1000;
    return batch;
}

// Copies of tokens and of two rows of targets, from whole rows, and of tokens after the cut.
std::vector<Column> copies() {
    const auto copy_tokens = [](Column::Values& values, const Batch& batch, const BatchLayout&) {
        values = batch.tokens;
    };
    const auto copy_targets = [](Column::Values& values, const Batch& batch, const BatchLayout&) {
        values = batch.targets;
        values.insert(values.end(), batch.targets.begin(), batch.targets.end());
    };
    return {{.name = "copy", .padding = 7, .compute = copy_tokens},
            {.name = "after", .after_cut = true, .compute = copy_tokens},
            {.name = "two rows", .rows = 2, .padding = -1, .compute = copy_targets}};
}

TEST(ContextPartTest, PartsAreTheWholeEachTokenOnce) {
    for (const int size : {1, 2, 3, 4}) {
        for (const int64_t S : {8, 12, 13, 17, 24, 31}) {
            const Batch whole = whole_rows(S);
            std::vector<int> seen(static_cast<size_t>(2 * S), 0);
            int64_t valid = 0;
            for (int index = 0; index < size; ++index) {
                const ContextPart part{.size = size, .index = index};
                Batch own = whole;
                complete(own, copies(), {.sequence_length = S, .part = part});
                const int64_t local = part.local_length(S);
                const std::vector<int64_t> places = part.places(S);
                ASSERT_EQ(static_cast<int64_t>(places.size()), local);
                ASSERT_EQ(static_cast<int64_t>(own.tokens.size()), 2 * local);
                EXPECT_EQ(own.step_targets, 1000);
                std::vector<int32_t> first_keys;  // per chunk; past the row's end: its last token's
                for (int64_t chunk = 0; size > 1 && chunk < 4 * size; ++chunk) {
                    const int64_t first = std::min(chunk % (2 * size) * part.chunk_length(S), S - 1);
                    first_keys.push_back(static_cast<int32_t>(first - first % 5));
                }
                EXPECT_EQ(own.chunk_first_keys, first_keys);
                EXPECT_EQ(own.columns.at("after"), own.tokens);
                EXPECT_EQ(own.columns.at("two rows").size(), 2 * own.tokens.size());
                valid += own.valid_targets;
                for (int64_t i = 0; i < 2 * local; ++i) {
                    const auto at = static_cast<size_t>(i);
                    const int64_t row = i / local;
                    if (i % local > 0) {
                        EXPECT_GE(own.positions[at], own.positions[at - 1]) << "ascending";
                    }
                    EXPECT_LE(own.first_key[at], row * S + own.positions[at]);
                    EXPECT_GE(own.first_key[at], row * S);
                    if (places[static_cast<size_t>(i % local)] < 0) {
                        EXPECT_EQ(own.targets[at], -1);
                        EXPECT_EQ(own.columns.at("two rows")[at], -1);
                        EXPECT_EQ(own.columns.at("copy")[at], 7);
                        EXPECT_EQ(own.positions[at], S - 1);
                        continue;
                    }
                    const auto from = static_cast<size_t>(own.tokens[at]);
                    ++seen[from];
                    EXPECT_EQ(static_cast<int64_t>(from), row * S + own.positions[at]);
                    EXPECT_EQ(own.targets[at], whole.targets[from]);
                    EXPECT_EQ(own.first_key[at], whole.first_key[from]);
                    EXPECT_EQ(own.columns.at("copy")[at], own.tokens[at]);
                    EXPECT_EQ(own.columns.at("two rows")[at], whole.targets[from]);
                    EXPECT_EQ(own.columns.at("two rows")[static_cast<size_t>(2 * local) + at],
                              whole.targets[from]);
                }
            }
            EXPECT_EQ(valid, whole.valid_targets);
            for (const int count : seen) EXPECT_EQ(count, 1) << size << " ranks, rows of " << S;
        }
    }
}

// The number of visible keys grows with the position: the chunks of each rank have equal sums of positions.
TEST(ContextPartTest, EveryRankHasAsManyKeysToSee) {
    for (int index = 0; index < 4; ++index) {
        const ContextPart part{.size = 4, .index = index};
        int64_t keys = 0;
        for (const int64_t place : part.places(64)) keys += place + 1;
        EXPECT_EQ(keys, 64 * 65 / 2 / 4);
    }
}

TEST(ContextPartTest, RefusesWhatIsNoPart) {
    Batch batch = whole_rows(8);
    const auto refused = [&](int64_t sequence_length, const ContextPart& part) {
        EXPECT_THROW(complete(batch, {}, {.sequence_length = sequence_length, .part = part}), Error);
    };
    refused(8, {.size = 2, .index = 2});
    refused(7, {.size = 2, .index = 0});
    refused(8, {.size = 0, .index = 0});
}

}  // namespace speedrun::context_part_test
