// Written tokenizer.json files: read back, they encode every text to the same tokens.
#include "train/hf/hf_tokenizer.h"

#include <random>

#include "data/bpe_vocabulary.h"
#include "data/gpt2_tokenizer.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "data/tokenizer.h"
#include "tests/data/test_files.h"

namespace speedrun::hf_tokenizer_test {

const std::string kFixtures = std::string(SPEEDRUN_SOURCE_ROOT) + "/tests/data/fixtures/";

std::vector<std::string> texts() {
    std::vector<std::string> result = {"",
                                       " ",
                                       "the quick brown fox  jumps\n\n over 12 dogs",
                                       "don't!\r\n\t",
                                       "\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80",
                                       "\xff\xfe broken",
                                       std::string(300, 'a'),
                                       "aaaaaa aaaa aaa"};
    std::mt19937 random(7);
    for (int i = 0; i < 200; ++i) {
        std::string text;
        for (int length = static_cast<int>(random() % 40); length > 0; --length)
            text += i % 2 == 0 ? static_cast<char>(random() % 256) : "aabcd e'st1\n"[random() % 12];
        result.push_back(text);
    }
    return result;
}

// Returns the tokenizer of the written file.
std::unique_ptr<Tokenizer> written(const TempDir& dir, const HfTokenizer& tokenizer) {
    write_hf_tokenizer(dir.path(), tokenizer);
    return make_tokenizer("gpt2", dir.file("tokenizer.json"));
}

void expect_same(const Tokenizer& here, const Tokenizer& there) {
    EXPECT_EQ(here.vocab_size(), there.vocab_size());
    EXPECT_EQ(here.separator(), there.separator());
    for (const std::string& text : texts()) {
        const std::vector<uint16_t> tokens = here.encode(text);
        ASSERT_EQ(there.encode(text), tokens) << text;
        const std::vector<int32_t> ids(tokens.begin(), tokens.end());
        ASSERT_EQ(there.decode(ids), text);
    }
}

TEST(HfTokenizerTest, BytesAreTheirOwnTokens) {
    const TempDir dir;
    expect_same(*make_tokenizer("bytes"),
                *written(dir, {.tokenizer = "bytes", .vocabulary = "", .longest = 64}));
    EXPECT_TRUE(is_byte_vocabulary(dir.file("tokenizer.json")));
    EXPECT_FALSE(is_byte_vocabulary(kFixtures + "small_tokenizer.json"));
    const auto config = parse_json<nlohmann::json>(read_text_file(dir.file("tokenizer_config.json")));
    EXPECT_EQ(config["model_max_length"], 64);
    EXPECT_EQ(config["eos_token"], "<|endoftext|>");
}

TEST(HfTokenizerTest, TokenizerJsonKeepsItsTokens) {
    const TempDir dir;
    const std::string from = kFixtures + "small_tokenizer.json";
    expect_same(*make_tokenizer("gpt2", from),
                *written(dir, {.tokenizer = "gpt2", .vocabulary = from, .longest = 8}));
}

// Settings that add tokens to a text, or cut it, are not written; a decoder is.
TEST(HfTokenizerTest, LeavesOutTemplatesAndTruncation) {
    const TempDir dir;
    auto json = parse_json<nlohmann::json>(read_text_file(kFixtures + "small_tokenizer.json"));
    json["post_processor"] = {{"type", "TemplateProcessing"}};
    json["truncation"] = {{"max_length", 4}};
    const std::string from = dir.write("changed.json", json.dump());
    expect_same(*make_tokenizer("gpt2", from),
                *written(dir, {.tokenizer = "gpt2", .vocabulary = from, .longest = 8}));
    const auto there = parse_json<nlohmann::json>(read_text_file(dir.file("tokenizer.json")));
    EXPECT_TRUE(there["post_processor"].is_null());
    EXPECT_TRUE(there["truncation"].is_null());
    EXPECT_EQ(there["decoder"]["type"], "ByteLevel");
}

// A tiktoken file has no merges: any split of a token may merge. "aaa" can be a + aa and aa + a; "xyz" is reached by no merge.
TEST(HfTokenizerTest, TiktokenFileBecomesMerges) {
    const TempDir dir;
    std::string text;
    auto add = [&text, id = 0](const std::string& token) mutable {
        static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (size_t i = 0; i < token.size(); i += 3) {
            uint32_t bits = 0;
            for (size_t j = 0; j < 3; ++j)
                bits = bits << 8 | (i + j < token.size() ? static_cast<unsigned char>(token[i + j]) : 0u);
            for (size_t j = 0; j < 4; ++j)
                text += i + j <= token.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
        }
        text += " " + std::to_string(id++) + "\n";
    };
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    for (const char* token :
         {"aa", "bc", "ab", "abc", "aaa", "st", "est", " a", " ab", "xyz", "aaaa", "cd", "bcd", "abcd"})
        add(token);
    const std::string from = dir.write("small.tiktoken", text);
    const auto here = make_tokenizer("gpt2", from);
    EXPECT_EQ(here->encode("xyz").size(), 1u);
    expect_same(*here, *written(dir, {.tokenizer = "gpt2", .vocabulary = from, .longest = 8}));
    const auto json = parse_json<nlohmann::json>(read_text_file(dir.file("tokenizer.json")));
    EXPECT_EQ(json["model"]["merges"].size(), 13u);  // one per token but xyz
    EXPECT_EQ(json["model"]["ignore_merges"], true);
}

}  // namespace speedrun::hf_tokenizer_test
