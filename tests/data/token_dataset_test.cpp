#include "data/token_dataset.h"

#include "tests/data/test_files.h"

namespace speedrun::token_dataset_test {

TEST(TokenDataset, ReadsAStreamAcrossShards) {
    const TempDir dir;
    const TokenDataset dataset(
        {write_tokens(dir.file("a.bin"), counting_tokens(5)), write_tokens(dir.file("b.bin"), {}),
         write_tokens(dir.file("c.bin"), counting_tokens(4, 5))},
        100, 99);
    EXPECT_EQ(dataset.num_shards(), 3);
    EXPECT_EQ(dataset.num_tokens(), 9);
    EXPECT_EQ(dataset.separator(), 99);
    for (int first = 0; first <= 9; ++first) {
        for (int count = 0; count <= 9 - first; ++count) {
            std::vector<uint16_t> out(static_cast<size_t>(count), 77);
            dataset.read(first, out);
            for (int i = 0; i < count; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], first + i);
        }
    }
    std::vector<uint16_t> out(3);
    expect_error(ExitCode::failure, {"3 tokens at 7", "has 9"}, [&] { dataset.read(7, out); });
    expect_error(ExitCode::failure, {"at -1"}, [&] { dataset.read(-1, out); });
}

TEST(TokenDataset, ReportsTokensOutsideTheVocabularyWhenTheyAreRead) {
    const TempDir dir;
    const TokenDataset dataset({write_tokens(dir.file("a.bin"), {1, 2, 9, 10, 3, 65535})}, 10, 0);
    std::vector<uint16_t> good(3), bad(5), out(1);
    dataset.read(0, good);
    EXPECT_EQ(good[2], 9);
    expect_error(ExitCode::data, {"a.bin", "token 3 is 10", "vocab_size is 10"},
                 [&] { dataset.read(1, bad); });
    expect_error(ExitCode::data, {"token 5 is 65535"}, [&] { dataset.read(5, out); });
    const TokenDataset large({dir.file("a.bin")}, 65536, 0);
    large.read(5, out);
    EXPECT_EQ(out[0], 65535);
}

TEST(TokenDataset, ChecksItsArguments) {
    const TempDir dir;
    const std::string file = write_tokens(dir.file("a.bin"), counting_tokens(5));
    expect_error(ExitCode::usage, {"vocab_size 256", "separator token 256"},
                 [&] { TokenDataset dataset({file}, 256, 256); });
    expect_error(ExitCode::data, {"without shard files"}, [&] { TokenDataset dataset({}, 257, 256); });
    expect_error(ExitCode::data, {"absent.bin"},
                 [&] { TokenDataset dataset({dir.file("absent.bin")}, 257, 256); });
}

}  // namespace speedrun::token_dataset_test
