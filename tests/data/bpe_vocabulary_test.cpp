// Vocabularies of two files, folders, and the tokenizer.json that is written.
// Covers: data/vocabulary_pair.cpp data/vocabulary_builder.cpp data/gpt2_alphabet.cpp data/tokenizer_json.cpp
#include "data/bpe_vocabulary.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/gpt2_alphabet.h"
#include "data/tokenizer_json.h"
#include "tests/data/test_files.h"

namespace speedrun::bpe_vocabulary_test {

using Ordered = nlohmann::ordered_json;

const std::string kSmall = SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/small_tokenizer.json";

void expect_equal(const BpeVocabulary& a, const BpeVocabulary& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.of_byte, b.of_byte);
    EXPECT_EQ(a.separator, b.separator);
    EXPECT_EQ(a.whole_pieces, b.whole_pieces);
    ASSERT_EQ(a.merges.size(), b.merges.size());
    for (size_t i = 0; i < a.merges.size(); ++i) {
        EXPECT_EQ(a.merges[i].left, b.merges[i].left) << i;
        EXPECT_EQ(a.merges[i].right, b.merges[i].right) << i;
        EXPECT_EQ(a.merges[i].result, b.merges[i].result) << i;
        EXPECT_EQ(a.merges[i].rank, b.merges[i].rank) << i;
    }
}

// The two files of the small tokenizer.
class VocabularyPairTest : public ::testing::Test {
  protected:
    VocabularyPairTest() {
        const Ordered model = Ordered::parse(read_text(kSmall))["model"];
        tokens_ = model["vocab"].dump();
        merges_ = "#version: 0.2\n";
        for (const auto& merge : model["merges"]) merges_ += merge.get<std::string>() + "\n";
    }
    const TempDir dir_;
    std::string tokens_, merges_;
};

TEST_F(VocabularyPairTest, ReadsBothNamesOfFiles) {
    const BpeVocabulary expected = read_bpe_vocabulary(kSmall);
    for (const auto& [tokens, merges] :
         {std::pair("vocab.json", "merges.txt"), {"encoder.json", "vocab.bpe"}}) {
        const TempDir dir;
        dir.write(tokens, tokens_);
        dir.write(merges, merges_);
        for (const std::string& path : {dir.path(), dir.file(tokens), dir.file(merges)}) {
            SCOPED_TRACE(path);
            expect_equal(read_bpe_vocabulary(path), expected);
        }
        std::filesystem::copy_file(kSmall, dir.file("tokenizer.json"));
        EXPECT_EQ(vocabulary_files(dir.path()).tokens, dir.file("tokenizer.json"));
    }
}

TEST_F(VocabularyPairTest, ReportsBadFiles) {
    const auto expect_refused = [&](const std::string& tokens, const std::string& merges,
                                    std::initializer_list<std::string> parts) {
        dir_.write("vocab.json", tokens);
        dir_.write("merges.txt", merges);
        expect_error(ExitCode::data, parts, [&] { read_bpe_vocabulary(dir_.path()); });
    };
    expect_error(ExitCode::data, {"no vocabulary in this folder", "merges.txt"},
                 [&] { read_bpe_vocabulary(dir_.path()); });
    dir_.write("vocab.json", tokens_);
    expect_error(ExitCode::data, {"merges.txt is missing"},
                 [&] { read_bpe_vocabulary(dir_.file("vocab.json")); });
    expect_refused(tokens_, "#version: 0.2\nt h e\n", {"merges.txt: line 2", "two tokens"});
    expect_refused(tokens_, "t q\n", {"vocab.json: merge in line 1", "'tq' is not in the vocabulary"});
    expect_refused(tokens_, merges_ + "t h\n", {"merge in line", "same pair as merge in line"});
    expect_refused("{\"a\": 0}", merges_, {"vocab.json", "no <|endoftext|>"});
    expect_refused("{\"<|endoftext|>\": 0}", "", {"no token for the single byte 0x00"});
    expect_refused("{\"a\": \"b\"}", merges_, {"\"a\"", "expected the id"});
    expect_refused("{\"a\": 70000}", merges_, {"70000", "0 to 65535"});
    expect_refused("[]", merges_, {"expected an object"});
    expect_refused("{", merges_, {"not valid JSON"});
}

TEST(TokenizerJsonTest, WritesWhatItReads) {
    const BpeVocabulary small = read_bpe_vocabulary(kSmall);
    expect_equal(read_tokenizer_json("text", write_tokenizer_json(small)), small);
    BpeVocabulary gap = small;  // an id without a token
    gap.tokens.emplace_back();
    gap.tokens.emplace_back("a token without a merge");
    expect_equal(read_tokenizer_json("text", write_tokenizer_json(gap)), gap);
}

// The tokenizers library finds such a token in text, so its tokens would differ.
TEST(TokenizerJsonTest, RefusesAddedTokensThatAreText) {
    Ordered json = Ordered::parse(read_text(kSmall));
    json["added_tokens"].push_back({{"id", 900}, {"content", "word"}, {"special", false}});
    expect_error(ExitCode::data, {"added_tokens[1].special", "expected true", "found false"},
                 [&] { read_tokenizer_json("text", json.dump()); });
    json["added_tokens"][1]["special"] = true;
    EXPECT_EQ(read_tokenizer_json("text", json.dump()).size(), 901);
}

TEST(Gpt2AlphabetTest, NamesEachByte) {
    const std::string bytes = gpt2_byte_order();
    EXPECT_EQ(bytes.substr(0, 3), "!\"#");
    EXPECT_EQ(bytes.substr(188), std::string("\0\x01\x02", 3) + bytes.substr(191))
        << "then bytes without a printable character";
    EXPECT_EQ(gpt2_bytes("path", "where", gpt2_text(bytes)), bytes);
    EXPECT_EQ(gpt2_text(" a\n"),
              "\xc4\xa0"
              "a\xc4\x8a");
}

}  // namespace speedrun::bpe_vocabulary_test
