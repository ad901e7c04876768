#include "data/prefetcher.h"
#include "data/columns/ngrams.h"

#include <chrono>

#include "tests/data/test_files.h"

namespace speedrun::prefetcher_test {

class PrefetcherTest : public testing::Test {
  protected:
    const TempDir dir_;
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), counting_tokens(1000))}, 60000, 5};
    const BatchLoader loader_{dataset_,
                              {.stages = {{.sequence_length = 8,
                                           .rows_per_step = 24,
                                           .columns = ngram_columns({.max_ngram = 3, .num_rows = 1000})}},
                               .seed = 11}};
};

void expect_equal(const Batch& actual, const Batch& expected) {
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_EQ(actual.targets, expected.targets);
    EXPECT_EQ(actual.positions, expected.positions);
    EXPECT_EQ(actual.first_key, expected.first_key);
    EXPECT_EQ(actual.columns, expected.columns);
    EXPECT_EQ(actual.columns.size(), 2u);
    EXPECT_EQ(actual.valid_targets, expected.valid_targets);
    EXPECT_EQ(actual.step_targets, expected.step_targets);
}

TEST_F(PrefetcherTest, EqualsDirectFill) {
    for (const int64_t depth : {1, 2, 5}) {
        for (const int64_t rank : {0, 1, 2}) {
            Prefetcher prefetcher(
                loader_,
                {.rows_per_microbatch = {2}, .rank = rank, .num_ranks = 3, .start_step = 5, .depth = depth});
            Batch expected;
            for (int64_t step = 5; step < 25; ++step) {
                for (int64_t microbatch = 0; microbatch < 4; ++microbatch) {
                    loader_.fill(step, {.first = (microbatch * 3 + rank) * 2, .count = 2}, expected);
                    expect_equal(prefetcher.next(), expected);
                }
            }
            EXPECT_GE(prefetcher.wait_ms(), 0);
        }
    }
}

// The reference must stay valid until the next call, while the thread fills the rest of the ring.
TEST_F(PrefetcherTest, TheReturnedBatchIsLeftAlone) {
    Prefetcher prefetcher(loader_, {.rows_per_microbatch = {24}, .depth = 1});
    for (int64_t step = 0; step < 5; ++step) {
        const Batch& batch = prefetcher.next();
        const Batch copy = batch;
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        expect_equal(batch, copy);
    }
}

TEST_F(PrefetcherTest, StopsPromptlyWhateverItIsDoing) {
    const PrefetcherOptions options{.rows_per_microbatch = {24}, .depth = 8};
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) {
        Prefetcher prefetcher(loader_, options);
        for (int j = 0; j < i % 3; ++j) prefetcher.next();
    }
    // Much longer than 20 threads need on a busy machine, much shorter than a stop that waits.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Prefetcher, RethrowsAfterTheGoodBatches) {
    const TempDir dir;
    std::vector<uint16_t> tokens = counting_tokens(41);
    tokens[22] = 600;
    const TokenDataset dataset({write_tokens(dir.file("a.bin"), tokens)}, 600, 0);
    const BatchLoader loader(dataset,
                             {.stages = {{.sequence_length = 4, .rows_per_step = 1}}, .shuffle = false});
    Prefetcher prefetcher(loader, {.rows_per_microbatch = {1}});
    for (int32_t step = 0; step < 5; ++step) EXPECT_EQ(prefetcher.next().tokens[0], 4 * step);
    expect_error(ExitCode::data, {"token 22 is 600"}, [&] { prefetcher.next(); });
    expect_error(ExitCode::data, {"token 22 is 600"}, [&] { prefetcher.next(); });
}

// Steps of 4 microbatches; the ring holds slightly more than two steps.
TEST_F(PrefetcherTest, MakesWholeStepsAhead) {
    Prefetcher prefetcher(loader_, {.rows_per_microbatch = {6}, .start_step = 3, .depth = 8});
    Batch expected;
    for (int64_t step = 3; step < 20; ++step) {
        EXPECT_TRUE(prefetcher.made_through(step + 1));
        for (int64_t microbatch = 0; microbatch < 4; ++microbatch) {
            loader_.fill(step, {.first = microbatch * 6, .count = 6}, expected);
            expect_equal(prefetcher.next(), expected);
        }
    }
    EXPECT_EQ(prefetcher.error(), nullptr);
    expect_error(ExitCode::failure, {"9 batches do not reach the end of step 22"},
                 [&] { prefetcher.made_through(22); });
}

// The error is reported before the steps that lead to it.
TEST(Prefetcher, SaysAheadThatAStepCannotBeMade) {
    const TempDir dir;
    const std::string path = write_tokens(dir.file("a.bin"), counting_tokens(401));
    const TokenDataset dataset({path}, 600, 0);
    const BatchLoader loader(dataset,
                             {.stages = {{.sequence_length = 4, .rows_per_step = 2}}, .shuffle = false});
    Prefetcher prefetcher(loader, {.rows_per_microbatch = {1}, .depth = 6});
    EXPECT_TRUE(prefetcher.made_through(2));
    std::filesystem::resize_file(path, 1024);
    int64_t step = 0;  // batches made earlier stay valid
    for (; prefetcher.made_through(step + 2); ++step)
        for (int32_t row = 0; row < 2; ++row) EXPECT_EQ(prefetcher.next().tokens[0], 8 * step + 4 * row);
    EXPECT_LT(step, 10);
    expect_error(ExitCode::data, {path, "while it was in use"},
                 [&] { std::rethrow_exception(prefetcher.error()); });
    for (int32_t row = 0; row < 4; ++row) EXPECT_EQ(prefetcher.next().tokens[0], 8 * step + 4 * row);
}

TEST_F(PrefetcherTest, ChecksItsArguments) {
    const auto make = [&](const PrefetcherOptions& options) { Prefetcher prefetcher(loader_, options); };
    expect_error(ExitCode::usage, {"5 rows", "1 ranks", "must divide 24"},
                 [&] { make({.rows_per_microbatch = {5}}); });
    expect_error(ExitCode::usage, {"rank 3 of 3"},
                 [&] { make({.rows_per_microbatch = {2}, .rank = 3, .num_ranks = 3}); });
    expect_error(ExitCode::usage, {"start step is -1"},
                 [&] { make({.rows_per_microbatch = {24}, .start_step = -1}); });
    expect_error(ExitCode::usage, {"depth is 0"}, [&] { make({.rows_per_microbatch = {24}, .depth = 0}); });
}

}  // namespace speedrun::prefetcher_test
