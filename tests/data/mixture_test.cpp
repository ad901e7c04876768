// Mixtures: shares, numbering, and rows of each source.
// Covers: data/mixture_order.cpp data/mixed_rows.cpp
#include <cmath>
#include <map>
#include <set>

#include "data/batch_loader.h"
#include "data/mixed_rows.h"
#include "data/prefetcher.h"
#include "data/stream_rows.h"
#include "tests/data/test_files.h"

namespace speedrun::mixture_test {

constexpr uint16_t kSeparator = 59999;
constexpr int32_t kVocab = 60000;

// Compares with a count row by row. Prefixes of any length have the shares of the weights.
TEST(MixtureOrderTest, CountsAndShares) {
    for (const std::vector<double>& weights :
         std::vector<std::vector<double>>{{1, 1}, {0.7, 0.2, 0.1}, {3, 1e-3, 5, 2}, {1}, {1e-9, 1}}) {
        for (const uint64_t seed : {1, 2, 77}) {
            const MixtureOrder order(weights, seed);
            std::vector<int64_t> counts(weights.size());
            double all = 0;
            for (const double weight : weights) all += weight;
            for (int64_t row = 0; row < 3000; ++row) {
                for (int k = 0; k < order.num_sources(); ++k) {
                    const int64_t count = counts[static_cast<size_t>(k)];
                    ASSERT_EQ(order.rows_before(k, row), count) << row;
                    const double expected = weights[static_cast<size_t>(k)] / all * static_cast<double>(row);
                    ASSERT_NEAR(static_cast<double>(count), expected, 2 + std::log2(row + 1.0)) << row;
                }
                ++counts[static_cast<size_t>(order.source_of(row))];
            }
            EXPECT_NEAR(order.share(0), weights[0] / all, 1e-15);
        }
    }
}

TEST(MixtureOrderTest, LargeNumbersAndSeeds) {
    const MixtureOrder order({2, 1}, 5), other({2, 1}, 6);
    const int64_t many = int64_t{3} << 50;
    EXPECT_EQ(order.rows_before(0, many) + order.rows_before(1, many), many);
    EXPECT_NEAR(static_cast<double>(order.rows_before(0, many)), static_cast<double>(many) / 3 * 2, 64);
    int64_t different = 0;
    for (int64_t row = many; row < many + 1000; ++row) {
        const int source = order.source_of(row);
        EXPECT_EQ(order.rows_before(source, row + 1), order.rows_before(source, row) + 1);
        different += other.source_of(row) != source;
    }
    EXPECT_GT(different, 100);
    EXPECT_EQ(order.source_of(7), MixtureOrder({4, 2}, 5).source_of(7));
}

// Two sources of 1,500 and 700 tokens, told apart by their values.
class MixtureLoaderTest : public ::testing::Test {
  protected:
    static bool is_second(int32_t token) { return token >= 20000; }
    BatchLoader loader(std::vector<LoaderStage> stages, std::vector<double> weights = {3, 1}) const {
        return {{{.dataset = &first_, .weight = weights[0]}, {.dataset = &second_, .weight = weights[1]}},
                {.stages = std::move(stages), .seed = 5}};
    }

    const TempDir dir_;
    const TokenDataset first_{{write_tokens(dir_.file("a.bin"), counting_tokens(1500))}, kVocab, kSeparator};
    const TokenDataset second_{
        {write_tokens(dir_.file("b.bin"), counting_tokens(700, 20000))}, kVocab, kSeparator};
};

// Rows of a source are the rows that it has alone, in the same order; it begins its next epoch when it is used up.
TEST_F(MixtureLoaderTest, EachSourceKeepsItsOrder) {
    const LoaderStage stage{.sequence_length = 16, .rows_per_step = 8};
    const BatchLoader mixed = loader({stage}), alone(first_, {.stages = {stage}, .seed = 5});
    const StreamRows second(second_, {.sequence_length = 16, .seed = 5 + 0x9e3779b97f4a7c15});
    const int64_t per_epoch = second.counts(0).rows;
    int64_t from_first = 0, from_second = 0;
    std::map<int64_t, std::set<int32_t>> starts;  // key: epoch of the second source
    for (int64_t step = 0; step < 60; ++step) {
        for (int64_t row = 0; row < 8; ++row) {
            const Batch batch = fill(mixed, step, {row, 1});
            if (is_second(batch.tokens[0])) {
                std::vector<uint16_t> expected(17);
                second.read(from_second, expected);
                ASSERT_EQ(batch.tokens[0], expected[0]);
                EXPECT_TRUE(starts[from_second++ / per_epoch].insert(batch.tokens[0]).second);
            } else {
                ASSERT_EQ(batch.tokens, fill(alone, from_first / 8, {from_first % 8, 1}).tokens);
                ++from_first;
            }
        }
    }
    EXPECT_NEAR(static_cast<double>(from_second), 120, 6);
    EXPECT_EQ(starts.size(), 3u);
    const std::vector<SourceUse> uses = mixed.uses(60);
    ASSERT_EQ(uses.size(), 2u);
    EXPECT_EQ(uses[0].rows, from_first);
    EXPECT_EQ(uses[1].rows, from_second);
    EXPECT_EQ(uses[1].tokens, 16 * from_second);
    EXPECT_EQ(uses[1].epoch.rows, per_epoch);
    EXPECT_DOUBLE_EQ(uses[1].epochs, static_cast<double>(from_second) / static_cast<double>(per_epoch));
    EXPECT_EQ(uses[0].epoch.tokens_seen + uses[0].epoch.tokens_dropped, 1500);
    EXPECT_TRUE(alone.uses(60).empty());
}

// Stages of other lengths, of the stream and of documents: no token twice within the first epoch of a source.
TEST_F(MixtureLoaderTest, StagesContinueEachSource) {
    const std::vector<LoaderStage> stages = {{.sequence_length = 4, .rows_per_step = 8, .num_steps = 10},
                                             {.sequence_length = 16, .rows_per_step = 2, .num_steps = 5},
                                             {.sequence_length = 5, .rows_per_step = 9, .num_steps = 5}};
    const BatchLoader rows = loader(stages, {2, 1});
    std::set<int32_t> seen;
    int64_t second = 0;
    for (int64_t step = 0; step < 20; ++step) {
        const Batch batch = fill(rows, step, {0, stages[rows.stage_at(step)].rows_per_step});
        for (size_t i = 0; i < batch.tokens.size(); ++i) {
            EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
            EXPECT_TRUE(seen.insert(batch.tokens[i]).second) << batch.tokens[i] << " at step " << step;
            second += is_second(batch.tokens[i]);
        }
        const std::vector<SourceUse> uses = rows.uses(step + 1);
        EXPECT_EQ(uses[1].tokens, second) << step;
        EXPECT_EQ(uses[0].tokens + uses[1].tokens, static_cast<int64_t>(seen.size())) << step;
    }
}

// Two stages of equal rows read the rows of one.
TEST_F(MixtureLoaderTest, EqualStagesAreOne) {
    for (const int64_t max_document_tokens : {0, 12}) {
        const LoaderStage stage{.sequence_length = 11,
                                .rows_per_step = 4,
                                .max_document_tokens = max_document_tokens,
                                .num_steps = 7};
        std::vector<uint16_t> low, high;
        for (uint16_t i = 0; i < 900; ++i) {
            low.push_back(i % 6 == 0 ? kSeparator : i);
            high.push_back(i % 9 == 0 ? kSeparator : static_cast<uint16_t>(20000 + i));
        }
        const TokenDataset a({write_tokens(dir_.file("e.bin"), low)}, kVocab, kSeparator);
        const TokenDataset b({write_tokens(dir_.file("f.bin"), high)}, kVocab, kSeparator);
        const std::vector<WeightedDataset> sources = {{.dataset = &a, .weight = 1},
                                                      {.dataset = &b, .weight = 2}};
        const BatchLoader two(sources, {.stages = {stage, stage}, .seed = 5}),
            one(sources, {.stages = {stage}, .seed = 5});
        for (int64_t step = 0; step < 14; ++step)
            EXPECT_EQ(fill(two, step, {0, 4}).tokens, fill(one, step, {0, 4}).tokens) << step;
    }
}

TEST_F(MixtureLoaderTest, DocumentsOfEachSource) {
    std::vector<uint16_t> low, high;
    for (uint16_t i = 0; i < 900; ++i) {
        low.push_back(i % 6 == 0 ? kSeparator : i);
        high.push_back(i % 9 == 0 ? kSeparator : static_cast<uint16_t>(20000 + i));
    }
    const TokenDataset a({write_tokens(dir_.file("c.bin"), low)}, kVocab, kSeparator);
    const TokenDataset b({write_tokens(dir_.file("d.bin"), high)}, kVocab, kSeparator);
    const LoaderStage stage{
        .sequence_length = 11, .rows_per_step = 4, .max_document_tokens = 12, .num_steps = 6};
    const BatchLoader rows({{.dataset = &a, .weight = 1}, {.dataset = &b, .weight = 1}},
                           {.stages = {stage, stage}, .seed = 5});
    std::set<int32_t> seen;
    int64_t of_b = 0;
    for (int64_t step = 0; step < 12; ++step) {
        for (int64_t row = 0; row < 4; ++row) {
            const Batch batch = fill(rows, step, {row, 1});
            ASSERT_EQ(batch.tokens.front(), kSeparator);  // a row begins with a document
            of_b += is_second(batch.tokens[1]);
            for (const int32_t token : batch.tokens) {
                EXPECT_TRUE(token == kSeparator || is_second(token) == is_second(batch.tokens[1]));
                EXPECT_TRUE(token == kSeparator || seen.insert(token).second) << token;
            }
        }
    }
    EXPECT_NEAR(static_cast<double>(of_b), 24, 3);
}

// The rows of a step do not depend on the number of ranks that read them.
TEST_F(MixtureLoaderTest, RanksReadTheSameRows) {
    const BatchLoader rows = loader({{.sequence_length = 16, .rows_per_step = 8}});
    std::vector<int32_t> by_ranks(static_cast<size_t>(8 * 16));
    for (int64_t rank = 0; rank < 2; ++rank) {
        Prefetcher prefetcher(rows,
                              {.rows_per_microbatch = {2}, .rank = rank, .num_ranks = 2, .start_step = 3});
        for (int64_t m = 0; m < 2; ++m) {
            const Batch& batch = prefetcher.next();
            std::copy(batch.tokens.begin(), batch.tokens.end(), by_ranks.begin() + (m * 2 + rank) * 2 * 16);
        }
    }
    EXPECT_EQ(by_ranks, fill(rows, 3, {0, 8}).tokens);
}

TEST_F(MixtureLoaderTest, Describes) {
    const std::string text = loader({{.sequence_length = 16, .rows_per_step = 8}}).describe();
    EXPECT_THAT(text, ::testing::HasSubstr("source 0, 75% of the rows: rows of the stream: "));
    EXPECT_THAT(text, ::testing::HasSubstr("source 1, 25% of the rows: rows of the stream: "));
    EXPECT_EQ(loader({{.sequence_length = 16, .rows_per_step = 8}}).counts(0).tokens_seen +
                  loader({{.sequence_length = 16, .rows_per_step = 8}}).counts(0).tokens_dropped,
              2200);
}

}  // namespace speedrun::mixture_test
