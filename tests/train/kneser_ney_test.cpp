// Kneser-Ney counts against a direct implementation of the formula in kneser_ney.h: maps of n-grams, sums over the
// vocabulary.
#include "train/records/kneser_ney.h"
#include "tests/errors.h"

#include <cmath>
#include <map>
#include <set>

#include "data/batch_loader.h"
#include "tests/temp_dir.h"
#include "train/records/counts_reference.h"

namespace speedrun {
namespace {

using Tokens = std::vector<uint16_t>;

class Plain {
  public:
    Plain(const std::vector<Tokens>& texts, int order, int vocab_size)
        : order_(order), vocab_size_(vocab_size) {
        for (const Tokens& text : texts)
            for (size_t i = 0; i < text.size(); ++i)
                for (size_t n = 1; n <= static_cast<size_t>(order) + 1 && i + n <= text.size(); ++n) {
                    const Tokens gram(text.begin() + static_cast<long>(i),
                                      text.begin() + static_cast<long>(i + n));
                    ++occurrences_[gram];
                    if (i > 0) left_[gram].insert(text[i - 1]);
                }
        for (size_t length = 1; length <= static_cast<size_t>(order) + 1; ++length) set_discounts(length);
    }

    int count(const Tokens& gram) const {
        if (static_cast<int>(gram.size()) == order_ + 1) {
            const auto found = occurrences_.find(gram);
            return found == occurrences_.end() ? 0 : found->second;
        }
        const auto found = left_.find(gram);
        return found == left_.end() ? 0 : static_cast<int>(found->second.size());
    }

    double discount(size_t length, int c) const {
        return c == 0 ? 0 : discounts_.at({length, std::min(c, 3)});
    }

    double probability(Tokens context, uint16_t token) const {
        while (static_cast<int>(context.size()) > order_) context.erase(context.begin());
        double sum = 0, discounted = 0;
        for (int w = 0; w < vocab_size_; ++w) {
            const int c = count(with(context, static_cast<uint16_t>(w)));
            sum += c;
            discounted += discount(context.size() + 1, c);
        }
        const double shorter =
            context.empty() ? 1.0 / vocab_size_ : probability({context.begin() + 1, context.end()}, token);
        if (sum == 0) return shorter;
        const int c = count(with(context, token));
        return std::max(c - discount(context.size() + 1, c), 0.0) / sum + discounted / sum * shorter;
    }

  private:
    void set_discounts(size_t length) {
        double n[5] = {};
        for (const auto& [gram, occurred] : occurrences_)
            if (gram.size() == length && count(gram) < 5) n[count(gram)] += 1;
        const double fallback[4] = {0, 0.5, 1, 1.5};
        double d[4] = {};
        bool good = n[1] > 0 && n[2] > 0 && n[3] > 0;
        for (int r = 1; good && r <= 3; ++r) {
            d[r] = r - (r + 1) * n[1] / (n[1] + 2 * n[2]) * n[r + 1] / n[r];
            good = d[r] >= 0 && d[r] <= r;
        }
        for (int r = 1; r <= 3; ++r) discounts_[{length, r}] = good ? d[r] : fallback[r];
    }

    static Tokens with(Tokens context, uint16_t token) {
        context.push_back(token);
        return context;
    }

    int order_, vocab_size_;
    std::map<Tokens, int> occurrences_;
    std::map<Tokens, std::set<int>> left_;
    std::map<std::pair<size_t, int>, double> discounts_;
};

constexpr int kVocabulary = 7;  // token 6 never occurs

// Two texts. Some contexts determine the next token, others do not.
std::vector<Tokens> texts() {
    std::vector<Tokens> result;
    uint32_t state = 12345;
    for (const size_t length : {size_t{130}, size_t{90}}) {
        Tokens text;
        for (size_t i = 0; i < length; ++i) {
            state = state * 1664525u + 1013904223u;
            const uint32_t dice = state >> 24;
            const int last = text.empty() ? 0 : text.back();
            text.push_back(static_cast<uint16_t>(dice < 150 ? (last * 2 + 1) % 5 : dice % 6));
        }
        result.push_back(text);
    }
    return result;
}

std::vector<std::span<const uint16_t>> spans(const std::vector<Tokens>& all) {
    return {all.begin(), all.end()};
}

// Contexts of 0 to 8 tokens, from the texts and unseen ones.
std::vector<Tokens> contexts() {
    const Tokens text = texts()[0], other = texts()[1];
    std::vector<Tokens> result = {{}, {6}, {6, 1, 3}, {0, 6, 2}, {5, 5, 5, 5, 5, 5, 5}};
    for (long length = 1; length <= 8; ++length) {
        result.emplace_back(text.begin() + 3 * length, text.begin() + 4 * length);
        result.emplace_back(text.begin(), text.begin() + length);
        result.emplace_back(other.end() - length, other.end());  // the longest one ends the text
        result.emplace_back(text.rbegin() + length, text.rbegin() + 2 * length);
    }
    return result;
}

TEST(KneserNeyTest, HasTheProbabilitiesOfThePlainFormula) {
    const std::vector<Tokens> all = texts();
    bool estimated = false, fallback = false;
    for (int order = 1; order <= 6; ++order) {
        const KneserNey counts(order, spans(all), kVocabulary);
        const Plain plain(all, order, kVocabulary);
        for (int k = 0; k <= order; ++k) {
            for (int r = 1; r <= 3; ++r)
                EXPECT_NEAR(counts.discounts(k)[static_cast<size_t>(r) - 1],
                            plain.discount(static_cast<size_t>(k) + 1, r), 1e-12)
                    << "order " << order << ", " << k << " tokens";
            (counts.discounts(k) == std::array<double, 3>{0.5, 1.0, 1.5} ? fallback : estimated) = true;
        }
        for (const Tokens& context : contexts()) {
            double sum = 0;
            for (uint16_t token = 0; token < kVocabulary; ++token) {
                const double p = counts.probability(context, token);
                EXPECT_NEAR(p, plain.probability(context, token), 1e-12) << "order " << order;
                EXPECT_GT(p, 0);
                sum += p;
            }
            EXPECT_NEAR(sum, 1, 1e-12) << "order " << order << ", a context of " << context.size();
        }
    }
    EXPECT_TRUE(estimated && fallback) << "the texts have one kind of discounts only";
}

TEST(KneserNeyTest, RowSeesNothingBeforeItsStart) {
    const std::vector<Tokens> all = texts();
    const KneserNey counts(4, spans(all), kVocabulary);
    const Plain plain(all, 4, kVocabulary);
    const Tokens row(all[0].begin() + 20, all[0].begin() + 40);
    double expected = 0;
    for (size_t i = 1; i < row.size(); ++i)
        expected -= std::log(plain.probability({row.begin(), row.begin() + static_cast<long>(i)}, row[i]));
    EXPECT_NEAR(counts.loss_sum(row), expected, 1e-10);
    EXPECT_EQ(counts.loss_sum({}), 0);
}

// Context "0 1" is followed by a token (2) only at the start of the text, where no token precedes it. Its continuation
// counts are therefore 0, although the n-gram "0 1 2" occurs.
TEST(KneserNeyTest, GoesOnBehindAContextWithoutCounts) {
    const Tokens text = {0, 1, 2, 3, 4, 3, 2, 5, 0, 1},
                 row = {4, 3, 2, 5, 0, 1, 2, 3, 4, 3, 2, 5, 0, 1, 2, 3};
    for (int order = 1; order <= 6; ++order) {
        const KneserNey counts(order, {text}, kVocabulary);
        const Plain plain({text}, order, kVocabulary);
        double expected = 0;
        for (size_t i = 1; i < row.size(); ++i)
            expected -=
                std::log(plain.probability({row.begin(), row.begin() + static_cast<long>(i)}, row[i]));
        EXPECT_NEAR(counts.loss_sum(row), expected, 1e-10) << "order " << order;
    }
}

// measure_counts scores the same rows as the engine's validation.
TEST(KneserNeyTest, ScoresTheRowsOfTheValidationLoader) {
    const std::vector<Tokens> all = texts();
    const TempDir folder;
    write_shard(folder.file("val.bin"), all[1]);
    const TokenDataset dataset({folder.file("val.bin")}, kVocabulary, 0);
    const KneserNey counts(3, {all[0]}, kVocabulary);
    for (const int64_t length : {1, 16, 89, 200}) {
        const ValidationLoader loader(dataset, {.sequence_length = length});
        double sum = 0;
        for (int64_t row = 0; row < loader.num_rows(); ++row) {
            Batch batch;
            loader.fill({.first = row, .count = 1}, batch);
            Tokens context;
            for (size_t i = 0; i < batch.targets.size() && batch.targets[i] >= 0; ++i) {
                context.push_back(static_cast<uint16_t>(batch.tokens[i]));
                sum -= std::log(counts.probability(context, static_cast<uint16_t>(batch.targets[i])));
            }
        }
        const TrackTokens tokens{.train = {all[0]}, .val = all[1], .vocab_size = kVocabulary, .shards = {}};
        EXPECT_NEAR(measure_counts(3, tokens, length).loss, sum / static_cast<double>(loader.num_targets()),
                    1e-12)
            << "rows of " << length;
    }
}

TEST(KneserNeyTest, TakesLargeVocabulariesAndGivesTheSameBits) {
    Tokens text;
    for (uint32_t i = 0; i < 3000; ++i) text.push_back(static_cast<uint16_t>(i * i * 40503u >> 3));
    text[7] = 65535;
    const KneserNey a(2, {text}, 65536), b(2, {text}, 65536);
    EXPECT_EQ(a.loss_sum(text), b.loss_sum(text));
    double sum = 0;
    for (uint32_t token = 0; token < 65536; ++token)
        sum += a.probability(Tokens{text[10], text[11]}, static_cast<uint16_t>(token));
    EXPECT_NEAR(sum, 1, 1e-10);
}

TEST(KneserNeyTest, RefusesWhatCannotBeCounted) {
    const Tokens text = {1, 2, 3};
    const auto make = [&](const Tokens& tokens, int order, int vocab_size) {
        return [=] { KneserNey(order, {tokens}, vocab_size); };
    };
    EXPECT_EQ(error_of(ExitCode::usage, make(text, 0, 7)),
              "order 0: contexts of 1 to 12 tokens can be counted");
    EXPECT_EQ(error_of(ExitCode::usage, make(text, 13, 7)),
              "order 13: contexts of 1 to 12 tokens can be counted");
    EXPECT_EQ(error_of(ExitCode::usage, make(text, 2, 65537)),
              "a vocabulary of 65537 tokens, counts are made of 1 to 65536");
    EXPECT_EQ(error_of(ExitCode::data, make(text, 2, 3)), "a token 3 in a vocabulary of 3");
    EXPECT_EQ(error_of(ExitCode::data, make({}, 2, 3)), "no tokens to count");
}

// Figure shown in README.md and on the boards.
TEST(KneserNeyTest, ReachesItsLossOnKjv) {
    const std::string root = SPEEDRUN_SOURCE_ROOT;
    const Track track = read_track(root + "/records/kjv");
    if (!has_shards(track, root + "/data/kjv"))
        GTEST_SKIP() << "data/kjv has no shards: data/kjv/prepare.sh BINARY makes them";
    const CountsResult result = measure_counts(5, read_track_tokens(track, root + "/data/kjv"), 256);
    EXPECT_NEAR(result.loss, 1.0804, 5e-5);
}

}  // namespace
}  // namespace speedrun
