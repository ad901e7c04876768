// Covers: data/sha256.cpp
#include "data/verify.h"

#include "data/data_identity.h"
#include "data/prepare.h"
#include "tests/data/test_files.h"

namespace speedrun::verify_test {

namespace fs = std::filesystem;

class VerifyTest : public testing::Test {
  protected:
    VerifyTest() {
        PrepareOptions options;
        options.inputs = {dir_.write("a", "abcdefgh"), dir_.write("b", "ijkl")};
        options.out_dir = dir_.file("out");
        options.shard_tokens = 5;
        options.quiet = true;
        prepare_dataset(options);
    }
    std::string shard(int index) const {
        return dir_.file("out/train_00000" + std::to_string(index) + ".bin");
    }
    static void change_byte(const std::string& path, int64_t offset, char mask) {
        std::string content = read_text(path);
        content[static_cast<size_t>(offset)] = static_cast<char>(content[static_cast<size_t>(offset)] ^ mask);
        std::ofstream(path, std::ios::binary) << content;
    }
    const TempDir dir_;
    const std::string out_ = dir_.file("out");
};

TEST_F(VerifyTest, GoodDataIsGood) {
    EXPECT_EQ(verify_dataset(out_), out_ + ": dataset 'out', 3 shards with 14 tokens, as prepared");
    identify_split({shard(0), shard(1), shard(2)});
    const TempDir without_json;
    identify_split({write_tokens(without_json.file("x.bin"), counting_tokens(3))});
    identify_split({});
}

// Every bit of a shard's tokens, within and beyond the vocabulary: each change is detected.
TEST_F(VerifyTest, EveryFlippedBitIsFound) {
    for (int64_t offset = kShardHeaderBytes; offset < kShardHeaderBytes + 10; ++offset) {
        for (int bit = 0; bit < 8; ++bit) {
            change_byte(shard(1), offset, static_cast<char>(1 << bit));
            expect_error(ExitCode::data, {"train_000001.bin"}, [&] {
                identify_split({shard(0), shard(1)}, 3000);
            });
            expect_error(ExitCode::data, {"train_000001.bin"}, [&] { verify_dataset(out_); });
            change_byte(shard(1), offset, static_cast<char>(1 << bit));
        }
    }
    verify_dataset(out_);
    change_byte(shard(1), 500, 1);  // also in an unused byte
    expect_error(ExitCode::data, {"train_000001.bin: damaged", "SHA-256 is", "expected"},
                 [&] { identify_split({shard(1)}); });
    identify_split({shard(0), shard(1)}, 2000);  // too large to be hashed: only counts are compared
}

TEST_F(VerifyTest, AllThatIsWrongIsNamed) {
    fs::copy_file(shard(2), shard(0), fs::copy_options::overwrite_existing);
    change_byte(shard(1), kShardHeaderBytes + 1, 4);
    fs::remove(shard(2));
    expect_error(ExitCode::data,
                 {"train_000000.bin: the header at offset 8 says 4 tokens, expected 5",
                  "train_000002.bin: cannot open", "train_000001.bin: token 0 is", "vocab_size is 257"},
                 [&] { verify_dataset(out_); });
    expect_error(ExitCode::data, {"train_000000.bin: the header at offset 8 says 4 tokens, expected 5"},
                 [&] { identify_split({shard(0)}, 0); });
    expect_error(ExitCode::data, {"nowhere/dataset.json"}, [&] { verify_dataset(dir_.file("nowhere")); });
}

}  // namespace speedrun::verify_test
