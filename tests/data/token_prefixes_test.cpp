#include "data/token_prefixes.h"

#include "data/bpe_vocabulary.h"
#include "tests/data/test_files.h"

namespace speedrun::token_prefixes_test {

using Tokens = std::vector<std::string>;
using Ids = std::vector<int32_t>;

TEST(TokenPrefixesTest, TheLongestOtherTokenThatATokenBeginsWith) {
    EXPECT_EQ(longest_prefixes({"a", "b", "ab", "abcd", "abc", "bc", " a", " ab"}),
              (Ids{-1, -1, 0, 4, 2, 1, -1, 6}));
    EXPECT_EQ(longest_prefixes({"abc", "ab", "xabc", "xa"}), (Ids{1, -1, 3, -1})) << "an ending is no prefix";
    EXPECT_EQ(longest_prefixes({}), Ids{});
}

// Separators have no bytes: they neither have nor are prefixes.
TEST(TokenPrefixesTest, TokensWithoutBytesHaveAndAreNone) {
    EXPECT_EQ(longest_prefixes({"", "a", "", "ab"}), (Ids{-1, -1, -1, 1}));
}

// Bytes, not characters: both halves of a two-byte letter are tokens.
TEST(TokenPrefixesTest, BytesMayEndWithinACharacter) {
    EXPECT_EQ(longest_prefixes({"\xc3", "\xa4", "\xc3\xa4", std::string("\0", 1), std::string("\0a", 2)}),
              (Ids{-1, -1, 0, -1, 3}));
}

// Compared with the definition, on a vocabulary with several thousand merges.
TEST(TokenPrefixesTest, HoldsForAVocabulary) {
    const Tokens tokens =
        read_bpe_vocabulary(SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/small_tokenizer.json").tokens;
    const Ids prefixes = longest_prefixes(tokens);
    ASSERT_EQ(prefixes.size(), tokens.size());
    int64_t with = 0;
    for (size_t id = 0; id < tokens.size(); ++id) {
        size_t longest = 0;
        Ids expected{-1};
        for (size_t other = 0; other < tokens.size(); ++other) {
            const size_t length = tokens[other].size();
            if (length <= longest || length >= tokens[id].size() || !tokens[id].starts_with(tokens[other]))
                continue;
            longest = length;
            expected[0] = static_cast<int32_t>(other);
        }
        EXPECT_EQ(prefixes[id], expected[0]) << id;
        with += prefixes[id] >= 0;
        EXPECT_EQ(prefixes[id] >= 0, tokens[id].size() > 1) << "single bytes are tokens all";
    }
    EXPECT_GT(with, 100);
}

}  // namespace speedrun::token_prefixes_test
