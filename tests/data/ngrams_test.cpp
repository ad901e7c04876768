#include "data/columns/ngrams.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace speedrun::ngrams_test {

using Ids = std::vector<int32_t>;
constexpr int64_t kMany =
    int64_t{1} << 30;  // rows; two n-grams of a test collide with probability below 1e-5

Ids hashed(const Ids& tokens, const Ids& first_key, int64_t n, int64_t rows = kMany) {
    Ids out(tokens.size());
    hash_ngrams(out, tokens, first_key, n, rows);
    return out;
}

Ids one_row(size_t size) {
    return Ids(size, 0);
}

TEST(NgramsTest, SameNgramSameRowOthersNot) {
    const Ids tokens = {7, 1, 2, 3, 9, 1, 2, 3, 2, 1};
    const Ids bigrams = hashed(tokens, one_row(10), 2), trigrams = hashed(tokens, one_row(10), 3);
    EXPECT_EQ(bigrams[2], bigrams[6]);    // 1 2
    EXPECT_EQ(trigrams[3], trigrams[7]);  // 1 2 3
    EXPECT_NE(trigrams[2], trigrams[6]);  // 7 1 2 and 9 1 2
    EXPECT_NE(bigrams[2], bigrams[9]);    // the order matters: 1 2 and 2 1
    EXPECT_NE(bigrams[2], trigrams[2]);
    EXPECT_EQ(std::set<int32_t>(bigrams.begin(), bigrams.end()).size(), 8U);
}

TEST(NgramsTest, NothingBeforeTheFirstKeyIsSeen) {
    const Ids tokens = {4, 5, 6, 5, 6, 7};
    const Ids first_key = {0, 0, 0, 3, 3, 3};
    const Ids ids = hashed(tokens, first_key, 3);
    Ids others = tokens;
    std::fill(others.begin(), others.begin() + 3, 99);
    const Ids moved = hashed(others, first_key, 3);
    EXPECT_TRUE(std::equal(ids.begin() + 3, ids.end(), moved.begin() + 3));
    // (absent, absent, 5), (absent, 5, 6) differ from n-grams of other tokens, including token 0.
    const Ids zeros = hashed({0, 0, 5, 6}, one_row(4), 3);
    EXPECT_NE(ids[3], zeros[2]);
    EXPECT_NE(ids[4], zeros[3]);
    // Two rows of a batch: the second starts like the first.
    const Ids both = hashed({8, 9, 8, 9}, {0, 0, 2, 2}, 2);
    EXPECT_EQ(both[0], both[2]);
    EXPECT_EQ(both[1], both[3]);
}

// Checkpoints contain trained rows: the function must never change. Values of the same definition in Python
// (tests/train/fixtures/generate.py).
TEST(NgramsTest, RowsAreTheSameInEveryBuild) {
    EXPECT_EQ(hashed({32, 116, 104, 101}, one_row(4), 2, 8192), (Ids{6021, 409, 3385, 2703}));
    EXPECT_EQ(hashed({32, 116, 104, 101}, one_row(4), 4, 1000003), (Ids{866927, 472309, 632624, 93957}));
}

TEST(NgramsTest, RowsAreUsedEvenly) {
    std::mt19937 random(3);
    Ids tokens(40000);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 257);
    std::vector<int> count(16);
    for (int32_t id : hashed(tokens, one_row(tokens.size()), 3, 16)) {
        ASSERT_TRUE(id >= 0 && id < 16);
        ++count[static_cast<size_t>(id)];
    }
    // Expected 2500 each, with a standard deviation of 48.
    for (int c : count) EXPECT_NEAR(c, 2500, 6 * 48);
}

TEST(NgramsTest, ABatchHasTheRowsOfEverySize) {
    Batch batch;
    batch.tokens = {8, 9, 3, 8, 9};
    const BatchLayout layout{.sequence_length = 5, .separator = 8};
    complete(batch, ngram_columns({.max_ngram = 4, .num_rows = 1000}), layout);
    ASSERT_EQ(batch.columns.size(), 3u);
    EXPECT_EQ(batch.first_key, (Ids{0, 0, 0, 3, 3}));
    for (int64_t n : {2, 3, 4})
        EXPECT_EQ(batch.columns.at(fmt::format("{}-grams", n)),
                  hashed(batch.tokens, batch.first_key, n, 1000));
    Batch& reused = batch;
    reused.tokens.resize(2);
    reused.first_key.clear();
    complete(reused, ngram_columns({.max_ngram = 2, .num_rows = 1000}), {.sequence_length = 2});
    EXPECT_EQ(reused.columns, (std::map<std::string, Ids>{{"2-grams", hashed({8, 9}, one_row(2), 2, 1000)}}));
    complete(reused, ngram_columns({}), {.sequence_length = 2});
    EXPECT_TRUE(reused.columns.empty());
}

// Expected values: the same formulas in Python's integers. 36313 times a token may exceed 31 bits: for 104, 65535 the
// xor is negative, but the remainder must be at least 0. Bigrams cross document borders.
TEST(NgramsTest, BigramsByProducts) {
    const Ids tokens = {32, 50256, 104, 65535, 7, 60000}, positions = {0, 1, 2, 3, 4, 5};
    Ids out(6);
    hash_bigrams(out, tokens, positions, 8192);
    EXPECT_EQ(out, (Ids{8191, 6052, 6019, 1021, 1772, 7100}));
    hash_bigrams(out, tokens, positions, 377280);
    EXPECT_EQ(out, (Ids{377279, 357205, 1271, 126127, 376856, 93880}));
    hash_bigrams(out, tokens, {{0, 1, 0, 1, 2, 3}}, 377280);  // two rows
    EXPECT_EQ(out, (Ids{377279, 357205, 377279, 126127, 376856, 93880}));
    choose_signs(out, tokens, positions, 8192);
    EXPECT_EQ(out, (Ids{0, 1136, 1080, 8087, 8184, 2663}));
    choose_signs(out, tokens, {{0, 1, 0, 1, 2, 3}}, 100);
    EXPECT_EQ(out, (Ids{0, 50288 % 100, 0, 65431 % 100, 65528 % 100, 60007 % 100}));
    EXPECT_THROW(hash_bigrams(out, tokens, positions, 1), std::exception);
    EXPECT_THROW(hash_bigrams(out, tokens, {{0, 1}}, 10), std::exception);
    EXPECT_THROW(choose_signs(out, tokens, positions, 0), std::exception);
}

TEST(NgramsTest, ABatchHasTheSignsOfTheTable) {
    Batch batch;
    batch.tokens = {8, 9, 3, 8, 9};
    batch.positions = {0, 1, 2, 0, 1};
    batch.first_key = {0, 0, 2, 3, 3};
    const BatchLayout layout{.sequence_length = 5};
    const NgramTable table{.max_ngram = 2, .num_rows = 50, .hash = NgramHash::products, .sign_rows = 7};
    std::vector<Column> columns = ngram_columns(table);
    columns.push_back(sign_rows_column(table));
    complete(batch, columns, layout);
    Ids rows(5), signs(5);
    hash_bigrams(rows, batch.tokens, batch.positions, 50);
    choose_signs(signs, batch.tokens, batch.positions, 7);
    EXPECT_EQ(batch.columns, (std::map<std::string, Ids>{{"2-grams", rows}, {"sign rows", signs}}));
}

TEST(NgramsTest, ChecksItsArguments) {
    Ids out(2);
    const Ids three(3);
    EXPECT_THROW(hash_ngrams(out, three, three, 2, 10), std::exception);
    EXPECT_THROW(hash_ngrams(out, out, three, 2, 10), std::exception);
    EXPECT_THROW(hash_ngrams(out, out, out, 0, 10), std::exception);
    EXPECT_THROW(hash_ngrams(out, out, out, 2, 0), std::exception);
}

}  // namespace speedrun::ngrams_test
