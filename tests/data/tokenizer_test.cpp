#include "data/tokenizer.h"

#include "tests/data/test_files.h"

namespace speedrun::tokenizer_test {

TEST(ByteTokenizer, RoundTripsEveryByte) {
    const auto tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->name(), "bytes");
    EXPECT_EQ(tokenizer->vocab_size(), 257);
    EXPECT_EQ(tokenizer->separator(), 256);
    std::string text;
    for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
    const std::vector<uint16_t> tokens = tokenizer->encode(text);
    EXPECT_EQ(tokens, counting_tokens(256));
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end())), text);
    EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(ByteTokenizer, TokensWithoutTextDecodeToNothing) {
    EXPECT_EQ(make_tokenizer("bytes")->decode(std::vector<int32_t>{'a', 256, 300, -1, 'b'}), "ab");
}

TEST(Tokenizer, UnknownNamesAreUsageErrors) {
    expect_error(ExitCode::usage, {"'words'", "known: bytes, gpt2"}, [] { make_tokenizer("words"); });
}

}  // namespace speedrun::tokenizer_test
