// Training of a vocabulary, against the tokenizers library (fixtures/trained_cases.json, written by fixtures/train_cases.py).
#include "data/bpe_trainer.h"

#include <nlohmann/json.hpp>

#include "data/gpt2_alphabet.h"
#include "data/gpt2_tokenizer.h"
#include "tests/data/test_files.h"

namespace speedrun::bpe_trainer_test {

using Json = nlohmann::json;

PieceCounts count(const std::vector<std::string>& documents, size_t part = 1000) {
    PieceCounts pieces;
    for (const std::string& document : documents) {
        for (size_t at = 0; at < document.size(); at += part)
            pieces.add(std::string_view(document).substr(at, part));
        pieces.end_document();
    }
    return pieces;
}

std::vector<std::string> merges_of(const BpeVocabulary& vocabulary) {
    std::vector<std::string> merges;
    for (const BpeMerge& merge : vocabulary.merges)
        merges.push_back(gpt2_text(vocabulary.tokens[merge.left]) + " " +
                         gpt2_text(vocabulary.tokens[merge.right]));
    return merges;
}

TEST(BpeTrainer, AgreesWithTokenizers) {
    const Json cases = Json::parse(read_text(SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/trained_cases.json"));
    ASSERT_GE(cases.size(), 5u);
    for (const Json& c : cases) {
        const auto documents = c["documents"].get<std::vector<std::string>>();
        for (const size_t part : {size_t{1000}, size_t{1}}) {
            const BpeVocabulary trained = train_bpe(count(documents, part), c["vocab_size"].get<int32_t>());
            EXPECT_EQ(merges_of(trained), c["merges"].get<std::vector<std::string>>()) << documents.front();
            ASSERT_EQ(trained.tokens.size(), c["tokens"].size());
            for (size_t id = 1; id < trained.tokens.size(); ++id)
                EXPECT_EQ(gpt2_text(trained.tokens[id]), c["tokens"][id].get<std::string>()) << id;
            EXPECT_EQ(trained.separator, 0);
            const std::vector<uint16_t> ids = make_gpt2_tokenizer(trained)->encode(documents.front());
            EXPECT_EQ(ids, c["ids"].get<std::vector<uint16_t>>()) << documents.front();
        }
    }
}

TEST(BpeTrainer, IgnoresOrderOfDocuments) {
    const std::vector<std::string> documents = {"the other then", "then abab", "brother bab the other",
                                                "abab ab"};
    const BpeVocabulary one = train_bpe(count(documents), 300);
    const BpeVocabulary other = train_bpe(count({documents.rbegin(), documents.rend()}), 300);
    EXPECT_EQ(one.tokens, other.tokens);
    EXPECT_EQ(merges_of(one), merges_of(other));
}

// Tokens are limited to a length that readers accept.
TEST(BpeTrainer, LimitsLengthOfTokens) {
    const BpeVocabulary trained = train_bpe(count({std::string(100'000, '=')}), 400);
    size_t longest = 0;
    for (const std::string& token : trained.tokens) longest = std::max(longest, token.size());
    EXPECT_EQ(longest, kMaxTokenBytes);
}

TEST(BpeTrainer, SmallestVocabularyHasNoMerges) {
    const BpeVocabulary trained = train_bpe(count({"the the the"}), kSmallestTrainedVocabulary);
    EXPECT_EQ(trained.size(), 257);
    EXPECT_TRUE(trained.merges.empty());
    EXPECT_EQ(train_bpe(PieceCounts(), 300).size(), 257);
}

}  // namespace speedrun::bpe_trainer_test
