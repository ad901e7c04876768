// Covers: data/stream_rows.cpp
#include "data/batch_loader.h"

#include <set>

#include "tests/data/test_files.h"

namespace speedrun::batch_loader_test {

constexpr int32_t kVocab = 60000;
constexpr int32_t kSeparator = 59999;
using Ints = std::vector<int32_t>;

Batch fill(const BatchLoader& loader, int64_t step, int64_t first_row, int64_t num_rows) {
    Batch batch;
    loader.fill(step, {first_row, num_rows}, batch);
    return batch;
}

// Returns the first token of each row; with counting tokens it identifies the row's window.
Ints row_starts(const Batch& batch, int64_t sequence_length) {
    Ints starts;
    for (size_t i = 0; i < batch.tokens.size(); i += static_cast<size_t>(sequence_length)) {
        starts.push_back(batch.tokens[i]);
    }
    return starts;
}

class BatchLoaderTest : public testing::Test {
  protected:
    const TempDir dir_;
    // Tokens count through both shards. A gap between them makes windows across shards detectable.
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), counting_tokens(103)),
                                 write_tokens(dir_.file("short.bin"), counting_tokens(4, 5000)),
                                 write_tokens(dir_.file("b.bin"), counting_tokens(57, 1000))},
                                kVocab,
                                kSeparator};
};

TEST_F(BatchLoaderTest, RowsAreWindowsWithTheirNextTokens) {
    const BatchLoader loader(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 4}}, .seed = 3});
    EXPECT_EQ(loader.counts(0).rows, (103 - 8) / 8 + (57 - 8) / 8);
    for (int64_t step = 0; step < 20; ++step) {
        const Batch batch = fill(loader, step, 0, 4);
        ASSERT_EQ(batch.tokens.size(), 32u);
        EXPECT_EQ(batch.valid_targets, 32);
        EXPECT_EQ(batch.step_targets, 32);
        EXPECT_EQ(fill(loader, step, 1, 2).step_targets, 32)
            << "the count is of the whole step, for any rows";
        for (int32_t i = 0; i < 32; ++i) {
            const size_t at = static_cast<size_t>(i);
            EXPECT_EQ(batch.tokens[at], batch.tokens[at - at % 8] + i % 8);
            EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
            EXPECT_TRUE(batch.targets[at] < 103 || (batch.tokens[at] >= 1000 && batch.targets[at] < 1057));
            EXPECT_EQ(batch.positions[at], i % 8);
            EXPECT_EQ(batch.first_key[at], i - i % 8);
        }
    }
}

TEST_F(BatchLoaderTest, AnEpochVisitsEachWindowOnce) {
    const BatchLoader loader(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 1}}, .seed = 3});
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
        std::set<int32_t> starts, grids;
        for (int64_t i = 0; i < loader.counts(0).rows; ++i) {
            const int64_t step = epoch * loader.counts(0).rows + i;
            EXPECT_EQ(loader.epoch(step), epoch);
            const int32_t start = fill(loader, step, 0, 1).tokens[0];
            EXPECT_TRUE(starts.insert(start).second) << "window at " << start << " twice in epoch " << epoch;
            grids.insert(start < 1000 ? start % 8 : 1000 + start % 8);
        }
        EXPECT_EQ(grids.size(), 2u) << "one grid in each shard";
    }
}

TEST_F(BatchLoaderTest, EpochsAndSeedsDiffer) {
    const BatchLoader first(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 17}}, .seed = 3});
    const BatchLoader second(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 17}}, .seed = 4});
    ASSERT_EQ(first.counts(0).rows, 17);  // one step is one epoch
    EXPECT_EQ(fill(first, 0, 0, 17).tokens, fill(first, 0, 0, 17).tokens);
    EXPECT_NE(fill(first, 0, 0, 17).tokens, fill(first, 1, 0, 17).tokens);
    EXPECT_NE(fill(first, 0, 0, 17).tokens, fill(second, 0, 0, 17).tokens);
    std::set<std::set<int32_t>> cuts;  // sets of cuts, independent of order
    for (int64_t epoch = 0; epoch < 8; ++epoch) {
        const Ints starts = row_starts(fill(first, epoch, 0, 17), 8);
        cuts.insert(std::set<int32_t>(starts.begin(), starts.end()));
    }
    EXPECT_GE(cuts.size(), 6u);
}

TEST_F(BatchLoaderTest, RowsDoNotDependOnHowAStepIsSplit) {
    const BatchLoader loader(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 12}}, .seed = 3});
    for (int64_t step = 0; step < 4; ++step) {
        const Batch whole = fill(loader, step, 0, 12);
        for (const int64_t rows : {1, 2, 3, 4, 6}) {
            Ints tokens, targets;
            for (int64_t row = 0; row < 12; row += rows) {
                const Batch part = fill(loader, step, row, rows);
                tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
                targets.insert(targets.end(), part.targets.begin(), part.targets.end());
                EXPECT_EQ(part.first_key.back(), static_cast<int32_t>((rows - 1) * 8));
            }
            EXPECT_EQ(tokens, whole.tokens);
            EXPECT_EQ(targets, whole.targets);
        }
    }
}

TEST_F(BatchLoaderTest, RowsDoNotDependOnTheStepSize) {
    const BatchLoader small(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 5}}, .seed = 3});
    const BatchLoader large(dataset_, {.stages = {{.sequence_length = 8, .rows_per_step = 20}}, .seed = 3});
    EXPECT_EQ(fill(small, 7, 0, 5).tokens, fill(large, 1, 15, 5).tokens);
}

TEST_F(BatchLoaderTest, WithoutShuffleRowsAreInFileOrder) {
    const BatchLoader loader(
        dataset_, {.stages = {{.sequence_length = 20, .rows_per_step = 7}}, .seed = 3, .shuffle = false});
    EXPECT_EQ(loader.counts(0).rows, 7);
    EXPECT_EQ(loader.counts(0).tokens_seen, (5 * 20 + 1) + (2 * 20 + 1));
    EXPECT_EQ(loader.counts(0).tokens_dropped, 2 + 4 + 16);
    EXPECT_EQ(loader.describe(), "rows of the stream: 7 an epoch with 142 tokens; 22 tokens are in none");
    const Ints expected = {0, 20, 40, 60, 80, 1000, 1020};
    EXPECT_EQ(row_starts(fill(loader, 0, 0, 7), 20), expected);
    EXPECT_EQ(row_starts(fill(loader, 5, 0, 7), 20), expected);
}

TEST_F(BatchLoaderTest, AShardOfOneWindowIsUsed) {
    const BatchLoader loader(dataset_, {.stages = {{.sequence_length = 102, .rows_per_step = 1}}, .seed = 3});
    EXPECT_EQ(loader.counts(0).rows, 1);
    for (int64_t step = 0; step < 5; ++step) EXPECT_EQ(fill(loader, step, 0, 1).tokens[0], 0);
    const BatchLoader slack(dataset_, {.stages = {{.sequence_length = 100, .rows_per_step = 1}}, .seed = 3});
    std::set<int32_t> starts;
    for (int64_t step = 0; step < 50; ++step) starts.insert(fill(slack, step, 0, 1).tokens[0]);
    EXPECT_EQ(starts, (std::set<int32_t>{0, 1, 2}));
}

TEST_F(BatchLoaderTest, ChecksItsArguments) {
    const auto make = [&](int64_t sequence_length, int64_t rows_per_step) {
        return BatchLoader(
            dataset_, {.stages = {{.sequence_length = sequence_length, .rows_per_step = rows_per_step}}});
    };
    expect_error(ExitCode::data, {"sequence_length 103", "104 tokens", "longest has 103"},
                 [&] { make(103, 1); });
    expect_error(ExitCode::usage, {"sequence_length is 0"}, [&] { make(0, 1); });
    expect_error(ExitCode::usage, {"rows_per_step is 0"}, [&] { make(8, 0); });
    const BatchLoader loader = make(8, 4);
    expect_error(ExitCode::failure, {"rows 3 to 5", "has 4"}, [&] { fill(loader, 0, 3, 2); });
    expect_error(ExitCode::failure, {"step -1"}, [&] { fill(loader, -1, 0, 1); });
}

TEST(BatchLoader, ReportsTokensOutsideTheVocabulary) {
    const TempDir dir;
    std::vector<uint16_t> tokens = counting_tokens(20);
    tokens[13] = 500;
    const TokenDataset dataset({write_tokens(dir.file("a.bin"), tokens)}, 500, 0);
    const BatchLoader loader(dataset,
                             {.stages = {{.sequence_length = 4, .rows_per_step = 1}}, .shuffle = false});
    fill(loader, 0, 0, 1);
    expect_error(ExitCode::data, {"a.bin", "token 13 is 500", "vocab_size is 500"},
                 [&] { fill(loader, 3, 0, 1); });
}

TEST(BatchLoader, FirstKeyIsTheLastSeparatorOfTheRow) {
    const TempDir dir;
    constexpr uint16_t X = 9;  // the separator
    // Rows of six: separators at the start, at the end, consecutive, and none.
    const TokenDataset dataset({write_tokens(dir.file("a.bin"), {X, 1, 2, X, 3, 4, 5, 6, 7, 8, 1, X, 1,
                                                                 X, X, 2, X, X, 1, 2, 3, 4, 5, 6, 7})},
                               10, X);
    BatchLoaderOptions options{.stages = {{.sequence_length = 6, .rows_per_step = 4}}, .shuffle = false};
    const Batch batch = fill(BatchLoader(dataset, options), 0, 0, 4);
    EXPECT_EQ(batch.first_key, (Ints{0,  0,  0,  3,  3,  3,  6,  6,  6,  6,  6,  11,  //
                                     12, 13, 14, 14, 16, 17, 18, 18, 18, 18, 18, 18}));
    EXPECT_EQ(batch.targets[11], 1);  // the separator predicts the next document's first token
    options.document_mask = false;
    EXPECT_EQ(fill(BatchLoader(dataset, options), 0, 0, 4).first_key,
              (Ints{0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 12, 12, 12, 12, 12, 12, 18, 18, 18, 18, 18, 18}));
}

TEST(BatchLoader, BatchesAreReused) {
    const TempDir dir;
    const TokenDataset dataset({write_tokens(dir.file("a.bin"), counting_tokens(100))}, kVocab, kSeparator);
    const BatchLoader loader(dataset, {.stages = {{.sequence_length = 8, .rows_per_step = 4}}, .seed = 1});
    Batch batch;
    loader.fill(0, {0, 4}, batch);
    const int32_t* memory = batch.tokens.data();
    loader.fill(1, {0, 2}, batch);
    EXPECT_EQ(batch.tokens.size(), 16u);
    EXPECT_EQ(batch.tokens.data(), memory);
    EXPECT_EQ(batch.valid_targets, 16);
}

}  // namespace speedrun::batch_loader_test
