
#include "data/columns/ngrams.h"
#include "tests/data/test_files.h"

namespace speedrun::validation_loader_test {

constexpr int32_t kSeparator = 99;
using Ints = std::vector<int32_t>;

class ValidationLoaderTest : public testing::Test {
  protected:
    const TempDir dir_;
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), counting_tokens(5)),
                                 write_tokens(dir_.file("b.bin"), counting_tokens(18, 5))},
                                100,
                                kSeparator};
};

// For every row length, number of targets and rows per batch: the targets in order are 1, 2, …, val_tokens.
TEST_F(ValidationLoaderTest, EachTokenIsOneTarget) {
    for (const int64_t length : {1, 2, 3, 7, 22, 50}) {
        for (const int64_t val_tokens : {0, 1, 6, 21, 22}) {
            const ValidationLoader loader(dataset_, {.sequence_length = length, .val_tokens = val_tokens});
            const int64_t expected = val_tokens == 0 ? 22 : val_tokens;
            EXPECT_EQ(loader.num_targets(), expected);
            EXPECT_EQ(loader.num_rows(), (expected + length - 1) / length);
            for (const int64_t rows : {1, 3}) {
                Ints seen;
                int64_t valid = 0;
                Batch batch;
                for (int64_t row = 0; row < loader.num_rows(); row += rows) {
                    loader.fill({row, rows}, batch);
                    ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(rows * length));
                    valid += batch.valid_targets;
                    for (size_t i = 0; i < batch.targets.size(); ++i) {
                        if (batch.targets[i] < 0) {
                            EXPECT_EQ(batch.tokens[i], kSeparator);
                            continue;
                        }
                        seen.push_back(batch.targets[i]);
                        EXPECT_EQ(batch.tokens[i], batch.targets[i] - 1);
                    }
                }
                EXPECT_EQ(valid, expected);
                ASSERT_EQ(seen.size(), static_cast<size_t>(expected));
                for (int64_t i = 0; i < expected; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i + 1);
            }
        }
    }
}

TEST_F(ValidationLoaderTest, FillsPositionsAndKeys) {
    const ValidationLoader loader(dataset_, {.sequence_length = 4, .val_tokens = 6});
    Batch batch;
    loader.fill({0, 2}, batch);
    EXPECT_EQ(batch.tokens, (Ints{0, 1, 2, 3, 4, 5, 99, 99}));
    EXPECT_EQ(batch.targets, (Ints{1, 2, 3, 4, 5, 6, -1, -1}));
    EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 3, 0, 1, 2, 3}));
    EXPECT_EQ(batch.first_key, (Ints{0, 0, 0, 0, 4, 4, 6, 7}));
    const ValidationLoader unmasked(dataset_,
                                    {.sequence_length = 4, .val_tokens = 6, .document_mask = false});
    unmasked.fill({0, 2}, batch);
    EXPECT_EQ(batch.first_key, (Ints{0, 0, 0, 0, 4, 4, 4, 4}));
    EXPECT_TRUE(batch.columns.empty());
}

TEST_F(ValidationLoaderTest, HasNgramColumns) {
    const std::vector<Column> ngrams = ngram_columns({.max_ngram = 3, .num_rows = 1000});
    const ValidationLoader loader(dataset_, {.sequence_length = 4, .val_tokens = 6, .columns = ngrams});
    Batch batch;
    loader.fill({0, 2}, batch);
    Batch expected = batch;
    expected.columns.clear();
    complete(expected, ngrams, {.sequence_length = 4});
    ASSERT_EQ(expected.columns.size(), 2u);
    EXPECT_EQ(batch.columns, expected.columns);
}

TEST_F(ValidationLoaderTest, RowsAfterEndArePadding) {
    const ValidationLoader loader(dataset_, {.sequence_length = 4, .val_tokens = 6});
    Batch batch;
    loader.fill({2, 2}, batch);
    EXPECT_EQ(batch.valid_targets, 0);
    EXPECT_EQ(batch.targets, Ints(8, -1));
}

TEST_F(ValidationLoaderTest, RejectsTooLittleData) {
    expect_error(ExitCode::data,
                 {"val_tokens is 23", "22 targets", "data.val_tokens to at most 22", "--val-fraction"},
                 [&] { ValidationLoader loader(dataset_, {.sequence_length = 4, .val_tokens = 23}); });
    const TokenDataset empty({write_tokens(dir_.file("empty.bin"), {})}, 100, kSeparator);
    expect_error(ExitCode::data, {"empty", "empty.bin", "0 tokens"},
                 [&] { ValidationLoader loader(empty, {.sequence_length = 4}); });
    const TokenDataset single({write_tokens(dir_.file("single.bin"), {1})}, 100, kSeparator);
    expect_error(ExitCode::data, {"1 tokens"},
                 [&] { ValidationLoader loader(single, {.sequence_length = 4}); });
    expect_error(ExitCode::usage, {"sequence_length is 0"},
                 [&] { ValidationLoader loader(dataset_, {.sequence_length = 0}); });
    expect_error(ExitCode::usage, {"val_tokens is -1"},
                 [&] { ValidationLoader loader(dataset_, {.sequence_length = 4, .val_tokens = -1}); });
}

}  // namespace speedrun::validation_loader_test
