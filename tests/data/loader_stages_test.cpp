// Rows of stages with different lengths: each starts at the end of the previous one, so that no token is read twice in an
// epoch. All callers read the same rows.
// Covers: data/columns/targets.cpp
#include <set>

#include "data/columns/targets.h"
#include "data/prefetcher.h"
#include "tests/data/test_files.h"

namespace speedrun::loader_stages_test {

constexpr uint16_t kSeparator = 59999;
constexpr int32_t kVocab = 60000;

class StreamStagesTest : public testing::Test {
  protected:
    BatchLoader loader(std::vector<LoaderStage> stages, bool shuffle = true) const {
        return {dataset_, {.stages = std::move(stages), .seed = 5, .shuffle = shuffle}};
    }

    const TempDir dir_;
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), counting_tokens(1500)),
                                 write_tokens(dir_.file("b.bin"), counting_tokens(700, 20000))},
                                kVocab,
                                kSeparator};
};

// 132 windows of 16 tokens: 25 steps use at most 132 windows, for any row length.
TEST_F(StreamStagesTest, NoTokenIsReadTwiceInAnEpoch) {
    for (const bool shuffle : {true, false}) {
        const std::vector<LoaderStage> stages = {{.sequence_length = 4, .rows_per_step = 8, .num_steps = 10},
                                                 {.sequence_length = 16, .rows_per_step = 2, .num_steps = 5},
                                                 {.sequence_length = 5, .rows_per_step = 9, .num_steps = 0}};
        const BatchLoader rows = loader(stages, shuffle);
        std::set<int32_t> seen;
        for (int64_t step = 0; step < 25; ++step) {
            const size_t stage = step < 10 ? 0 : step < 15 ? 1 : 2;
            EXPECT_EQ(rows.stage_at(step), stage);
            EXPECT_EQ(rows.epoch(step), 0);
            const Batch batch = fill(rows, step, {0, stages[stage].rows_per_step});
            ASSERT_EQ(static_cast<int64_t>(batch.tokens.size()),
                      stages[stage].sequence_length * stages[stage].rows_per_step);
            for (size_t i = 0; i < batch.tokens.size(); ++i) {
                EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
                EXPECT_TRUE(seen.insert(batch.tokens[i]).second) << batch.tokens[i] << " at step " << step;
            }
        }
    }
}

// Four rows of four tokens equal one of 16: adjacent in file order, and apart when shuffled.
TEST_F(StreamStagesTest, ShortRowsAreCutFromWindows) {
    const std::vector<LoaderStage> stages = {{.sequence_length = 4, .rows_per_step = 8, .num_steps = 4},
                                             {.sequence_length = 16, .rows_per_step = 2}};
    const BatchLoader in_order = loader(stages, false);
    for (int64_t step = 0; step < 4; ++step) {
        const Batch batch = fill(in_order, step, {0, 8});
        for (int32_t i = 0; i < 32; ++i) EXPECT_EQ(batch.tokens[static_cast<size_t>(i)], step * 32 + i);
    }
    EXPECT_EQ(fill(in_order, 4, {0, 1}).tokens[0], 128);

    const BatchLoader shuffled = loader(stages);
    const BatchLoader whole = loader({{.sequence_length = 16, .rows_per_step = 2}});
    std::set<int32_t> short_starts, long_starts;
    for (int64_t step = 0; step < 4; ++step) {
        const Batch pieces = fill(shuffled, step, {0, 8}), windows = fill(whole, step, {0, 2});
        for (size_t i = 0; i < 32; i += 4) short_starts.insert(pieces.tokens[i]);
        for (size_t i = 0; i < 32; i += 4) long_starts.insert(windows.tokens[i]);
        // Eight windows are in the range, and a step has eight rows: one per window.
        for (size_t i = 4; i < 32; i += 4) EXPECT_NE(pieces.tokens[i], pieces.tokens[i - 4] + 4);
    }
    EXPECT_EQ(short_starts, long_starts) << "equal to the text without stages";
    for (int64_t step = 4; step < 8; ++step)
        EXPECT_EQ(fill(shuffled, step, {0, 2}).tokens, fill(whole, step, {0, 2}).tokens);
}

TEST_F(StreamStagesTest, EqualStagesAreOne) {
    const LoaderStage same{.sequence_length = 8, .rows_per_step = 6, .num_steps = 3};
    const BatchLoader staged = loader({same, same, same}), whole = loader({same});
    for (int64_t step = 0; step < 60; ++step) {
        EXPECT_EQ(fill(staged, step, {0, 6}).tokens, fill(whole, step, {0, 6}).tokens) << step;
        EXPECT_EQ(staged.epoch(step), whole.epoch(step)) << step;
    }
}

TEST_F(StreamStagesTest, SaysWhatEachStageReads) {
    const BatchLoader rows = loader({{.sequence_length = 8, .rows_per_step = 2, .num_steps = 3},
                                     {.sequence_length = 16, .rows_per_step = 1}});
    EXPECT_THAT(rows.describe(), HasSubstr("stage 0: rows of the stream"));
    EXPECT_THAT(rows.describe(), HasSubstr("\nstage 1: rows of the stream"));
}

TEST_F(StreamStagesTest, ChecksItsArguments) {
    EXPECT_THROW(loader({}), Error);
    EXPECT_THROW(loader({{.sequence_length = 8, .rows_per_step = 2, .num_steps = 3},
                         {.sequence_length = 0, .rows_per_step = 1}}),
                 Error);
    EXPECT_THROW(loader({{.sequence_length = 8, .rows_per_step = 2, .num_steps = 3},
                         {.sequence_length = 8, .rows_per_step = 2, .max_document_tokens = 4}}),
                 Error);
    const BatchLoader rows = loader({{.sequence_length = 8, .rows_per_step = 2, .num_steps = 3},
                                     {.sequence_length = 4, .rows_per_step = 9}});
    Batch batch;
    EXPECT_THROW(rows.fill(2, {0, 9}, batch), Error) << "the other stage's number of rows";
    EXPECT_NO_THROW(rows.fill(3, {0, 9}, batch));
}

class DocumentStagesTest : public testing::Test {
  protected:
    // Documents of 3 to 12 tokens; all tokens of a document are its number.
    static std::vector<uint16_t> documents(uint16_t first, uint16_t count) {
        std::vector<uint16_t> tokens;
        for (uint16_t document = first; document < first + count; ++document) {
            tokens.push_back(kSeparator);
            tokens.insert(tokens.end(), static_cast<size_t>(2 + document % 10), document);
        }
        return tokens;
    }
    // Returns the document numbers in a row's tokens.
    static std::set<int32_t> numbers_of(const Batch& batch) {
        std::set<int32_t> numbers(batch.tokens.begin(), batch.tokens.end());
        numbers.erase(kSeparator);
        return numbers;
    }

    const TempDir dir_;
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), documents(0, 400)),
                                 write_tokens(dir_.file("b.bin"), documents(400, 300))},
                                kVocab,
                                kSeparator};
    const std::vector<LoaderStage> stages_ = {
        {.sequence_length = 15, .rows_per_step = 4, .max_document_tokens = 5, .num_steps = 12},
        {.sequence_length = 31, .rows_per_step = 2, .max_document_tokens = 12, .num_steps = 12},
        {.sequence_length = 20, .rows_per_step = 3, .max_document_tokens = 8, .num_steps = 0}};
};

TEST_F(DocumentStagesTest, NoDocumentIsReadTwiceInAnEpoch) {
    const BatchLoader rows(dataset_, {.stages = stages_, .seed = 5});
    std::set<int32_t> seen;
    for (int64_t step = 0; step < 30; ++step) {
        const size_t stage = rows.stage_at(step);
        EXPECT_EQ(rows.epoch(step), 0);
        for (int64_t row = 0; row < stages_[stage].rows_per_step; ++row) {
            const Batch batch = fill(rows, step, {row, 1});
            EXPECT_EQ(batch.tokens[0], kSeparator) << "every row starts at a document";
            EXPECT_EQ(static_cast<int64_t>(batch.tokens.size()), stages_[stage].sequence_length);
            for (const int32_t number : numbers_of(batch))
                EXPECT_TRUE(seen.insert(number).second) << number << " again, at step " << step;
        }
    }
    EXPECT_GT(seen.size(), 250u);
}

TEST_F(DocumentStagesTest, EqualStagesAreOne) {
    LoaderStage same = stages_[1];
    same.num_steps = 25;
    for (const bool shuffle : {true, false}) {
        const BatchLoader staged(dataset_, {.stages = {same, same, same}, .seed = 5, .shuffle = shuffle});
        const BatchLoader whole(dataset_, {.stages = {same}, .seed = 5, .shuffle = shuffle});
        for (int64_t step = 0; step < 300; ++step) {
            ASSERT_EQ(fill(staged, step, {0, 2}).tokens, fill(whole, step, {0, 2}).tokens) << step;
            EXPECT_EQ(staged.epoch(step), whole.epoch(step)) << step;
        }
        EXPECT_GT(whole.epoch(299), 2) << "through epochs";
    }
}

TEST_F(DocumentStagesTest, RowsDoNotDependOnHowAStepIsSplit) {
    const BatchLoader rows(dataset_, {.stages = stages_, .seed = 5}),
        again(dataset_, {.stages = stages_, .seed = 5});
    for (const int64_t step : {200, 11, 12, 30, 3}) {  // in arbitrary order
        const int64_t count = stages_[rows.stage_at(step)].rows_per_step;
        const Batch whole = fill(rows, step, {0, count});
        std::vector<int32_t> tokens;
        for (int64_t row = 0; row < count; ++row) {
            const Batch one = fill(again, step, {row, 1});
            tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
        }
        EXPECT_EQ(tokens, whole.tokens) << step;
    }
}

TEST_F(StreamStagesTest, FurtherTargetsEndWithTheirRow) {
    const BatchLoader rows = loader({{.sequence_length = 4,
                                      .rows_per_step = 2,
                                      .columns = {targets_column({.num_tokens = 3})},
                                      .num_steps = 2},
                                     {.sequence_length = 4, .rows_per_step = 2}});
    const Batch batch = fill(rows, 0, {0, 2});
    const std::vector<int32_t>& targets = batch.columns.at("targets");
    ASSERT_EQ(targets.size(), 3 * 8u);
    for (int32_t k = 0; k <= 2; ++k) {
        for (size_t t = 0; t < 8; ++t)
            EXPECT_EQ(targets[static_cast<size_t>(k) * 8 + t],
                      t % 4 + static_cast<size_t>(k) < 4 ? batch.targets[t] + k : -1)
                << k << " " << t;
    }
    EXPECT_TRUE(fill(rows, 2, {0, 2}).columns.empty());
    Batch masked;
    masked.targets = {1, -1, 3, 4};
    masked.tokens = {0, 0, 0, 0};
    complete(masked, std::vector{targets_column({.num_tokens = 2})}, {.sequence_length = 4});
    EXPECT_EQ(masked.columns.at("targets"), (std::vector<int32_t>{1, -1, 3, 4, -1, 3, 4, -1}))
        << "ignored targets stay ignored";
    EXPECT_EQ(masked.valid_targets, 3);
    EXPECT_THROW(targets_column({.num_tokens = 0}), Error);
}

// Prefixes of the targets follow all further targets, in the stage that counts them.
TEST_F(StreamStagesTest, PrefixesOfTargetsAreTheLastTargets) {
    Batch batch;
    batch.targets = {4, 0, -1, 2};
    batch.tokens = {0, 0, 0, 0};
    const BatchLayout layout{
        .sequence_length = 4,
        .prefixes = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{-1, 0, 1, -1, 3})};
    const auto completed = [&](int64_t num_tokens, const BatchLayout& how) {
        complete(batch, std::vector{targets_column({.num_tokens = num_tokens, .prefix = true})}, how);
        return batch.columns.at("targets");
    };
    EXPECT_EQ(completed(2, layout), (std::vector<int32_t>{4, 0, -1, 2, 0, -1, 2, -1, 3, -1, -1, 1}));
    EXPECT_EQ(completed(1, layout), (std::vector<int32_t>{4, 0, -1, 2, 3, -1, -1, 1}));
    EXPECT_THROW(completed(1, {.sequence_length = 4}), Error) << "without a table";
    batch.targets[0] = 5;
    EXPECT_THROW(completed(1, layout), Error);

    const std::vector<LoaderStage> stages{
        {.sequence_length = 4,
         .rows_per_step = 2,
         .columns = {targets_column({.num_tokens = 2, .prefix = true})},
         .num_steps = 2},
        {.sequence_length = 4, .rows_per_step = 2, .columns = {targets_column({.num_tokens = 2})}}};
    std::vector<int32_t> by_token(65536);
    for (size_t token = 0; token < by_token.size(); ++token)
        by_token[token] = static_cast<int32_t>(token / 2);
    const BatchLoader rows(
        dataset_, {.stages = stages, .prefixes = std::make_shared<const std::vector<int32_t>>(by_token)});
    const Batch first = fill(rows, 0, {0, 2});
    const std::vector<int32_t>& targets = first.columns.at("targets");
    ASSERT_EQ(targets.size(), 3 * 8u);
    for (size_t t = 0; t < 8; ++t) EXPECT_EQ(targets[16 + t], first.targets[t] / 2);
    EXPECT_EQ(fill(rows, 2, {0, 2}).columns.at("targets").size(), 2 * 8u);
}

// Two ranks with separate rows of every microbatch, from a step in each stage on.
TEST_F(StreamStagesTest, PrefetchersFollowTheStages) {
    const BatchLoader rows = loader({{.sequence_length = 4, .rows_per_step = 16, .num_steps = 3},
                                     {.sequence_length = 16, .rows_per_step = 4, .num_steps = 2},
                                     {.sequence_length = 8, .rows_per_step = 8}});
    const int64_t at_once[] = {4, 2, 1}, microbatches[] = {2, 1, 4};
    for (const int64_t start : {0, 2, 3, 4, 5, 9}) {
        for (const int64_t rank : {0, 1}) {
            Prefetcher prefetcher(rows, {.rows_per_microbatch = {4, 2, 1},
                                         .rank = rank,
                                         .num_ranks = 2,
                                         .start_step = start,
                                         .depth = 3});
            Batch expected;
            for (int64_t step = start; step < start + 8; ++step) {
                const size_t stage = rows.stage_at(step);
                for (int64_t m = 0; m < microbatches[stage]; ++m) {
                    rows.fill(step, {.first = (m * 2 + rank) * at_once[stage], .count = at_once[stage]},
                              expected);
                    const Batch& batch = prefetcher.next();
                    EXPECT_EQ(batch.tokens, expected.tokens) << step;
                    EXPECT_EQ(batch.targets, expected.targets) << step;
                    EXPECT_EQ(batch.step_targets, expected.step_targets) << step;
                }
            }
        }
    }
}

}  // namespace speedrun::loader_stages_test
