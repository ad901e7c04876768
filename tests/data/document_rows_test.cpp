// Rows of documents: their contents, their independence of the caller, and that every token is counted.
// Covers: data/document_index.cpp
#include "data/document_rows.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "data/columns/ngrams.h"
#include "tests/data/test_files.h"

namespace speedrun::document_rows_test {

constexpr uint16_t X = 999;  // the separator
constexpr int32_t kVocab = 60000;
using Ints = std::vector<int32_t>;
using Tokens = std::vector<uint16_t>;

std::shared_ptr<const DocumentIndex> index_of(const TokenDataset& dataset) {
    return std::make_shared<const DocumentIndex>(dataset);
}

// S: row length.
Tokens row_of(const RowSource& rows, int64_t row, int64_t S) {
    Tokens tokens(static_cast<size_t>(S) + 1);
    rows.read(row, tokens);
    return tokens;
}

class ByHandTest : public testing::Test {
  protected:
    const TempDir dir_;
    // The first shard starts within a document, the second at one; the last document ends with the data.
    const TokenDataset dataset_{{write_tokens(dir_.file("a.bin"), {70, 71, X, 1, 2, X, 10, 11, 12, 13, 14}),
                                 write_tokens(dir_.file("b.bin"), {X, X, 20, 21, 22, 23, X, 30, X, 40, 41})},
                                kVocab,
                                X};
};

// Rows of 6 + 1 tokens, documents cut at 4. The documents of 3, 6, 1, 5, 2 and 3 tokens are cut to 3, 4, 1, 4, 2 and 3: the
// first two form a row, the next three another, and the last one none.
TEST_F(ByHandTest, DocumentsAreCutAndPackedInFileOrder) {
    const DocumentRows rows(dataset_, index_of(dataset_),
                            {.sequence_length = 6, .max_document_tokens = 4, .shuffle = false});
    EXPECT_EQ(rows.num_documents(), 6);
    const Tokens first = {X, 1, 2, X, 10, 11, 12}, second = {X, X, 20, 21, 22, X, 30};
    for (const int64_t row : {0, 2, 2000}) EXPECT_EQ(row_of(rows, row, 6), first) << row;
    for (const int64_t row : {1, 3, 2001}) EXPECT_EQ(row_of(rows, row, 6), second) << row;
    EXPECT_EQ(rows.epoch(1), 0);
    EXPECT_EQ(rows.epoch(2000), 1000);
    // 70 71 before the first separator, 13 14 and 23 after a cut, X 40 41 at the end.
    const EpochCounts counts = rows.counts(7);
    EXPECT_EQ(counts.rows, 2);
    EXPECT_EQ(counts.tokens_seen, 14);
    EXPECT_EQ(counts.tokens_dropped, 2 + 2 + 1 + 3);
    EXPECT_EQ(rows.describe(),
              "rows of documents: 2 an epoch with 14 tokens of 6 documents, each cut at 4 tokens; 8 tokens "
              "(36.4%) are dropped");
}

TEST_F(ByHandTest, ABatchHoldsInputsTargetsAndFirstKeys) {
    BatchLoaderOptions options{
        .stages = {{.sequence_length = 6, .rows_per_step = 2, .max_document_tokens = 4}}, .shuffle = false};
    const Batch batch = fill(BatchLoader(dataset_, options), 3, {0, 2});
    EXPECT_EQ(batch.tokens, (Ints{X, 1, 2, X, 10, 11, X, X, 20, 21, 22, X}));
    EXPECT_EQ(batch.targets, (Ints{1, 2, X, 10, 11, 12, X, 20, 21, 22, X, 30}));
    EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(batch.first_key, (Ints{0, 0, 0, 3, 3, 3, 6, 7, 7, 7, 7, 11}));
    EXPECT_EQ(batch.valid_targets, 12);
    EXPECT_EQ(batch.step_targets, 12);
    EXPECT_EQ(fill(BatchLoader(dataset_, options), 3, {1, 1}).first_key, (Ints{0, 1, 1, 1, 1, 5}));
}

// A row of seven tokens ends after the third token of a document of five. The other two tokens are in no row.
TEST_F(ByHandTest, TheLastDocumentOfARowIsCutAtItsEnd) {
    const DocumentRows rows(dataset_, index_of(dataset_),
                            {.sequence_length = 6, .max_document_tokens = 6, .shuffle = false});
    EXPECT_EQ(row_of(rows, 0, 6), (Tokens{X, 1, 2, X, 10, 11, 12}));
    EXPECT_EQ(row_of(rows, 1, 6), (Tokens{X, X, 20, 21, 22, 23, X}));
    EXPECT_EQ(row_of(rows, 2, 6), row_of(rows, 0, 6))
        << "30 is dropped with its document, X 40 41 fills no row";
}

TEST_F(ByHandTest, WhatCannotBeIsSaidWithItsNumbers) {
    const auto make = [](const TokenDataset& data, int64_t sequence_length, int64_t most) {
        DocumentRows(data, index_of(data), {.sequence_length = sequence_length, .max_document_tokens = most});
    };
    make(dataset_, 16, 4);
    expect_error(ExitCode::data, {"sequence_length 17", "18 tokens", "6 documents", "have 17", "cut at 4"},
                 [&] { make(dataset_, 17, 4); });
    expect_error(ExitCode::usage, {"max_document_tokens is 0"}, [&] { make(dataset_, 6, 0); });
    const TokenDataset none({dir_.file("a.bin")}, kVocab, 500);
    expect_error(ExitCode::data, {"11 training tokens", "a.bin", "separator 500"}, [&] { make(none, 2, 2); });
    const TokenDataset small({dir_.file("a.bin")}, 71, 1);
    const BatchLoader loader(
        small,
        {.stages = {{.sequence_length = 2, .rows_per_step = 1, .max_document_tokens = 3}}, .shuffle = false});
    expect_error(ExitCode::data, {"a.bin", "token 5 is 999", "vocab_size is 71"}, [&] {
        fill(loader, 0, {0, 1});
    });
}

// As written by prepare: the separator after each document, and documents that continue in the next shard.
class SeparatorsAfterTest : public testing::Test {
  protected:
    // Documents of the shards in file order, each in a separate row: "999 1 2" has two tokens.
    std::vector<Tokens> documents(const std::vector<Tokens>& shards,
                                  SeparatorPlace place = SeparatorPlace::after) const {
        std::vector<std::string> files;
        for (const Tokens& shard : shards)
            files.push_back(write_tokens(dir_.file(std::to_string(files.size()) + ".bin"), shard));
        const TokenDataset dataset(files, kVocab, X, place);
        const DocumentIndex index(dataset);
        std::vector<Tokens> found;
        for (int64_t i = 0; i < index.size(); ++i) {
            const DocumentIndex::Document document = index[i];
            Tokens tokens(static_cast<size_t>(document.length), X);
            dataset.read(document.first, std::span(tokens).subspan(document.bare ? 1 : 0));
            found.push_back(tokens);
        }
        return found;
    }
    const TempDir dir_;
};

TEST_F(SeparatorsAfterTest, EveryDocumentBeginsWithASeparator) {
    const std::vector<Tokens> expected = {{X, 1, 2}, {X, 3}, {X, 4, 5}};
    EXPECT_EQ(documents({{1, 2, X, 3, X, 4, 5, X}}), expected);
    // For any division into shards.
    EXPECT_EQ(documents({{1, 2, X}, {3, X, 4, 5, X}}), expected) << "each shard begins with a document";
    EXPECT_EQ(documents({{1}, {2, X, 3}, {}, {X}, {4, 5, X}}), expected) << "documents go on in the next";
    EXPECT_EQ(documents({{1}, {2}, {X}, {3}, {X}, {4}, {5}, {X}}), expected);
    EXPECT_EQ(documents({{}, {1, 2, X, 3, X}, {4, 5}}), expected) << "the last separator may be missing";
    EXPECT_EQ(documents({{X, 1, 2, X, 3, X, 4, 5}}), expected)
        << "as may be the first of the other convention";
}

TEST_F(SeparatorsAfterTest, OneDocumentIsEnough) {
    EXPECT_EQ(documents({{1, 2, 3, X}}), (std::vector<Tokens>{{X, 1, 2, 3}}));
    EXPECT_EQ(documents({{1, 2, 3}}), (std::vector<Tokens>{{X, 1, 2, 3}}));
    expect_error(ExitCode::data, {"none of the 3 training tokens", "separator 999"}, [&] {
        documents({{1, 2, 3}}, SeparatorPlace::before);
    });
}

// FineWeb's files: tokens before a shard's first separator belong to a text of another file.
TEST_F(SeparatorsAfterTest, SeparatorsBeforeAreReadAsEver) {
    EXPECT_EQ(documents({{X, 1, 2, X, 3}, {7, X, 4, 5}}, SeparatorPlace::before),
              (std::vector<Tokens>{{X, 1, 2}, {X, 3}, {X, 4, 5}}));
}

TEST_F(SeparatorsAfterTest, RowsHoldEveryDocumentAndCountEveryToken) {
    const TokenDataset dataset({write_tokens(dir_.file("a.bin"), {1, 2, X, 3}),
                                write_tokens(dir_.file("b.bin"), {4, X, 5, 6, 7, X})},
                               kVocab, X, SeparatorPlace::after);
    const DocumentRows rows(dataset, index_of(dataset),
                            {.sequence_length = 4, .max_document_tokens = 4, .shuffle = false});
    EXPECT_EQ(row_of(rows, 0, 4), (Tokens{X, 1, 2, X, 3}));
    EXPECT_EQ(row_of(rows, 1, 4), row_of(rows, 0, 4)) << "4 tokens are left, which fill no row";
    EXPECT_EQ(rows.counts(0).tokens_seen, 5);
    EXPECT_EQ(rows.counts(0).tokens_dropped, 5);
    const DocumentRows all(dataset, index_of(dataset),
                           {.sequence_length = 9, .max_document_tokens = 9, .shuffle = false});
    EXPECT_EQ(row_of(all, 0, 9), (Tokens{X, 1, 2, X, 3, 4, X, 5, 6, 7}));
    EXPECT_EQ(all.counts(0).tokens_dropped, 0);
}

// Random documents over three shards. A token is its index in the stream of shards, plus 1000, and thus its position.
class DocumentRowsTest : public testing::Test {
  protected:
    static constexpr int64_t S = 50, kLongest = 24;

    DocumentRowsTest() {
        std::mt19937 random(5);
        for (int shard = 0; shard < 3; ++shard) {
            Tokens tokens;
            for (int i = 0; i < 3000; ++i, ++count_) {
                const bool starts = random() % 16 == 0 && i > 20 * shard;
                if (starts) starts_.push_back(count_);
                tokens.push_back(static_cast<uint16_t>(starts ? X : 1000 + count_));
            }
            files_.push_back(
                write_tokens(dir_.file(std::string(1, static_cast<char>('a' + shard)) + ".bin"), tokens));
        }
        dataset_.emplace(files_, kVocab, X);
    }

    DocumentRows rows(bool shuffle = true, uint64_t seed = 3) const {
        return {*dataset_,
                index_of(*dataset_),
                {.sequence_length = S, .max_document_tokens = kLongest, .seed = seed, .shuffle = shuffle}};
    }
    BatchLoader loader(int64_t rows_per_step, uint64_t seed = 3) const {
        return {*dataset_,
                {.stages = {{.sequence_length = S,
                             .rows_per_step = rows_per_step,
                             .max_document_tokens = kLongest,
                             .columns = ngram_columns({.max_ngram = 3, .num_rows = 100})}},
                 .seed = seed}};
    }
    // Returns the documents of a row by their first token after the separator, with their tokens in the row.
    static std::vector<Tokens> documents(const Tokens& row) {
        std::vector<Tokens> found;
        for (const uint16_t token : row) {
            if (token == X) found.emplace_back();
            if (found.empty()) {
                ADD_FAILURE() << "the row begins with " << token;
                found.emplace_back();
            }
            found.back().push_back(token);
        }
        return found;
    }

    const TempDir dir_;
    std::vector<std::string> files_;
    std::vector<int64_t> starts_;  // start of each document, in the stream
    int64_t count_ = 0;
    std::optional<TokenDataset> dataset_;
};

TEST_F(DocumentRowsTest, RowsAreDocumentsFromTheirStarts) {
    const DocumentRows source = rows();
    ASSERT_EQ(source.num_documents(), static_cast<int64_t>(starts_.size()));
    int64_t next = 0;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
        const EpochCounts counts = source.counts(epoch);
        EXPECT_EQ(counts.tokens_seen, counts.rows * (S + 1));
        EXPECT_EQ(counts.tokens_seen + counts.tokens_dropped, count_);
        std::set<uint16_t> seen;  // all tokens except separators, which have no position
        int64_t separators = 0;
        for (int64_t row = 0; row < counts.rows; ++row, ++next) {
            EXPECT_EQ(source.epoch(next), epoch);
            const Tokens tokens = row_of(source, next, S);
            ASSERT_EQ(tokens.size(), static_cast<size_t>(S + 1));
            const std::vector<Tokens> found = documents(tokens);
            for (size_t d = 0; d < found.size(); ++d) {
                const Tokens& document = found[d];
                const auto length = static_cast<int64_t>(document.size());
                EXPECT_LE(length, kLongest);
                ++separators;
                for (int64_t i = 1; i < length; ++i) {
                    EXPECT_TRUE(seen.insert(document[static_cast<size_t>(i)]).second) << "a token twice";
                    EXPECT_EQ(document[static_cast<size_t>(i)], document[1] + i - 1);
                }
                if (length < 2) continue;
                const int64_t start = document[1] - 1001;
                const auto at = std::lower_bound(starts_.begin(), starts_.end(), start);
                ASSERT_TRUE(at != starts_.end() && *at == start) << "no document starts at " << start;
                int64_t end = (start / 3000 + 1) * 3000;
                if (at + 1 != starts_.end()) end = std::min(end, at[1]);
                // Only the last document may be shorter than its cut.
                const int64_t cut = std::min(end - start, kLongest);
                EXPECT_TRUE(length == cut || (d + 1 == found.size() && length < cut));
            }
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()) + separators, counts.tokens_seen);
    }
    EXPECT_EQ(source.epoch(next), 4);
}

TEST_F(DocumentRowsTest, WithoutShuffleDocumentsAreInFileOrder) {
    const DocumentRows source = rows(false);
    const EpochCounts counts = source.counts(0);
    uint16_t last = 0;
    for (int64_t row = 0; row < counts.rows; ++row) {
        const Tokens tokens = row_of(source, row, S);
        for (const uint16_t token : tokens) {
            if (token == X) continue;
            EXPECT_GT(token, last);
            last = token;
        }
        EXPECT_EQ(tokens, row_of(source, row + 5 * counts.rows, S)) << "all epochs are alike";
    }
}

TEST_F(DocumentRowsTest, EpochsAndSeedsDiffer) {
    const DocumentRows first = rows(), second = rows(true, 4);
    const auto starts = [](const DocumentRows& source, int64_t epoch) {
        int64_t row = 0;
        for (int64_t before = 0; before < epoch; ++before) row += source.counts(before).rows;
        std::vector<Tokens> all;
        for (const int64_t end = row + source.counts(epoch).rows; row < end; ++row)
            all.push_back(row_of(source, row, S));
        return all;
    };
    const auto epoch = starts(first, 0);
    EXPECT_EQ(epoch, starts(rows(), 0));
    EXPECT_NE(epoch, starts(first, 1));
    EXPECT_NE(epoch, starts(second, 0));
    EXPECT_NE(epoch, starts(rows(false), 0));
    std::set<int64_t> numbers;
    for (int64_t e = 0; e < 30; ++e) numbers.insert(first.counts(e).rows);
    EXPECT_GT(numbers.size(), 1u) << "for the next test: an epoch's first row depends on earlier epochs";
}

// For any caller, and any previous calls.
TEST_F(DocumentRowsTest, RowsDoNotDependOnWhatWasAskedBefore) {
    const DocumentRows forwards = rows();
    std::vector<Tokens> expected;
    for (int64_t row = 0; row < 900; ++row) expected.push_back(row_of(forwards, row, S));
    ASSERT_GT(forwards.epoch(899), 3);
    for (const int64_t from : {899, 450, 1}) EXPECT_EQ(row_of(rows(), from, S), expected[size_t(from)]);
    const DocumentRows backwards = rows();
    for (int64_t row = 899; row >= 0; --row) EXPECT_EQ(row_of(backwards, row, S), expected[size_t(row)]);
    for (int64_t e : {6, 0, 3}) EXPECT_EQ(backwards.counts(e).rows, rows().counts(e).rows);
}

TEST_F(DocumentRowsTest, RowsDoNotDependOnHowAStepIsSplit) {
    const BatchLoader steps = loader(12), single = loader(1);
    for (const int64_t step : {0, 7, 40}) {
        const Batch whole = fill(steps, step, {0, 12});
        for (const int64_t count : {1, 2, 3, 4, 6}) {
            Ints tokens, targets, trigrams;
            for (int64_t row = 0; row < 12; row += count) {
                const Batch part = fill(steps, step, {row, count});
                tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
                targets.insert(targets.end(), part.targets.begin(), part.targets.end());
                const Ints& of_part = part.columns.at("3-grams");
                trigrams.insert(trigrams.end(), of_part.begin(), of_part.end());
                EXPECT_EQ(part.step_targets, 12 * S);
            }
            EXPECT_EQ(tokens, whole.tokens);
            EXPECT_EQ(targets, whole.targets);
            EXPECT_EQ(trigrams, whole.columns.at("3-grams"));
        }
        const Batch last = fill(single, 12 * step + 11, {0, 1});
        EXPECT_TRUE(std::equal(last.tokens.begin(), last.tokens.end(), whole.tokens.end() - S));
    }
}

TEST_F(DocumentRowsTest, ManyThreadsReadTheSameRows) {
    const DocumentRows alone = rows();
    std::vector<Tokens> expected;
    for (int64_t row = 0; row < 600; ++row) expected.push_back(row_of(alone, row, S));
    for (int again = 0; again < 10; ++again) {
        const DocumentRows shared = rows();
        std::atomic<size_t> waiting = 4;
        std::vector<std::thread> threads;
        std::vector<int> wrong(waiting);
        for (size_t t = 0; t < wrong.size(); ++t) {
            threads.emplace_back([&, t] {
                for (--waiting; waiting > 0;) std::this_thread::yield();
                for (size_t i = 0; i < 60; ++i) {
                    const size_t row = (i * 151 + t * 37) % 600;  // a different epoch each time
                    wrong[t] += row_of(shared, static_cast<int64_t>(row), S) != expected[row];
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(wrong, (std::vector<int>{0, 0, 0, 0}));
    }
}

}  // namespace speedrun::document_rows_test
