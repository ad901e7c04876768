// Covers: data/data_identity_json.cpp
#include "data/data_identity.h"

#include "data/json_text.h"
#include "data/prepare.h"
#include "tests/data/test_files.h"

namespace speedrun::data_identity_test {

namespace fs = std::filesystem;
using Files = std::vector<std::string>;

class DataIdentityTest : public testing::Test {
  protected:
    // Shards of 5 tokens with this text.
    Files prepare(const std::string& folder, const std::string& text) const {
        PrepareOptions options;
        options.inputs = {dir_.write("text", text)};
        options.out_dir = dir_.file(folder);
        options.shard_tokens = 5;
        options.quiet = true;
        options.force = true;
        Files files;
        for (const ShardInfo& shard : prepare_dataset(options).info.shards)
            files.push_back(dir_.file(folder) + "/" + shard.file);
        return files;
    }
    std::string shard(const std::string& name, const std::vector<uint16_t>& tokens) const {
        fs::create_directories(fs::path(dir_.file(name)).parent_path());
        return write_tokens(dir_.file(name), tokens);
    }
    static std::string differences(const SplitIdentity& there, const SplitIdentity& here) {
        std::string text;
        for (const std::string& line : split_differences("data.train", there, here)) text += line + "\n";
        return text;
    }
    static std::string differences(const Files& there, const Files& here) {
        return differences(identify_split(there), identify_split(here));
    }
    static void expect_overlap(std::initializer_list<std::string> parts, const Files& train,
                               const Files& val) {
        expect_error(ExitCode::usage, parts, [&] {
            expect_no_overlap({.train = identify_split(train), .val = identify_split(val)});
        });
    }
    const TempDir dir_;
};

TEST_F(DataIdentityTest, SaysWhatShardsHold) {
    const Files files = prepare("a", "abcdefg");
    const SplitIdentity split = identify_split(files);
    EXPECT_EQ(split.tokenizer, "bytes");
    EXPECT_EQ(split.separators, SeparatorPlace::after);
    EXPECT_TRUE(split.hashed);
    ASSERT_EQ(split.shards.size(), 2u);
    EXPECT_EQ(split.shards[1].file, "train_000001.bin");
    EXPECT_EQ(split.shards[1].tokens, 3);
    EXPECT_EQ(split.shards[1].sha256, sha256_file(files[1]));
    // Too large to hash: uses the prepared hash, and samples of the content.
    const SplitIdentity large = identify_split(files, 100);
    EXPECT_FALSE(large.hashed);
    EXPECT_EQ(large.shards[0].sha256, split.shards[0].sha256);
    EXPECT_EQ(large.shards[0].sampled_sha256, split.shards[0].sampled_sha256);
    const std::string alone = shard("alone.bin", {1, 2});
    EXPECT_EQ(identify_split({alone}).shards[0].sha256, sha256_file(alone));
    EXPECT_EQ(identify_split({alone}, 100).shards[0].sha256, "") << "no file says it";
}

TEST_F(DataIdentityTest, IsTheSameElsewhere) {
    prepare("a", "abcdefg");
    fs::rename(dir_.file("a"), dir_.file("moved"));
    fs::create_symlink(dir_.file("moved"), dir_.file("link"));
    const Files moved = {dir_.file("moved/train_000000.bin"), dir_.file("moved/train_000001.bin")},
                link = {dir_.file("link/train_000000.bin"), dir_.file("link/train_000001.bin")};
    const Files again = prepare("a", "abcdefg");
    EXPECT_EQ(differences(moved, again), "");
    EXPECT_EQ(differences(moved, link), "");
    const DataIdentity data{.train = identify_split(moved), .val = identify_split({moved[1]})};
    const DataIdentity read = data_identity_from_json(data_identity_to_json(data));
    EXPECT_TRUE(data_differences(read, data).empty());
    EXPECT_EQ(data_identity_to_json(read), data_identity_to_json(data));
}

TEST_F(DataIdentityTest, NamesWhatDiffers) {
    const SplitIdentity one = identify_split(prepare("a", "abcdefghijklm"));
    EXPECT_EQ(differences(one, identify_split(prepare("a", "abcdeFghijklm")))
                  .find("data.train: train_000001.bin has other content: SHA-256 "),
              0u);
    EXPECT_EQ(differences(one, identify_split(prepare("a", "abcdefghijkl"))),
              "data.train: train_000002.bin has 4 tokens there, 3 here\n");
    EXPECT_EQ(differences(one, identify_split(prepare("a", "abcdefghijklmnopq"))),
              "data.train: train_000003.bin is here and not there\n");
    EXPECT_EQ(differences(one, identify_split(prepare("a", "a"))),
              "data.train: train_000001.bin, train_000002.bin is there and not here\n");
    const std::string x = shard("x/x.bin", {1}), y = shard("y/y.bin", {2}), z = shard("z/x.bin", {1});
    EXPECT_EQ(differences(Files{x, y}, {y, z}),
              "data.train: shards are in another order: number 1 is x.bin there, y.bin here\n");
    EXPECT_THAT(differences(one, identify_split({x})), HasSubstr("tokens of bytes (vocab_size 257"));
    SplitIdentity before = one;
    before.separators = SeparatorPlace::before;
    EXPECT_THAT(differences(one, before), HasSubstr("another side"));
}

// A split too large to be hashed completely: another text differs in a sample although dataset.json is unchanged.
TEST_F(DataIdentityTest, SamplesNoticeAnotherText) {
    const std::string path = shard("a.bin", counting_tokens(30000));
    const SplitIdentity one = identify_split({path}, 0);
    EXPECT_EQ(differences(one, identify_split({path}, 0)), "");
    for (const int place : {0, 29999}) {
        std::vector<uint16_t> other = counting_tokens(30000);
        other[static_cast<size_t>(place)] = 7000;
        shard("a.bin", other);
        EXPECT_THAT(differences(one, identify_split({path}, 0)), HasSubstr("SHA-256 of samples")) << place;
    }
    shard("a.bin", counting_tokens(30000, 1));
    EXPECT_NE(differences(one, identify_split({path}, 0)), "");
    for (const int tokens : {0, 1, 1536, 1537, 2048, 6000}) {
        shard("b.bin", counting_tokens(tokens));
        EXPECT_EQ(sampled_sha256(Shard(dir_.file("b.bin"))).size(), 64u) << tokens;
    }
}

TEST_F(DataIdentityTest, NoShardIsReadTwice) {
    const std::string a = shard("a.bin", {1, 2}), b = shard("b.bin", {3}), copy = shard("copy.bin", {1, 2});
    expect_no_overlap({.train = identify_split({a}), .val = identify_split({b})});
    expect_overlap({a + " is twice in data.train", "data.allow_overlap"}, {a, a, b}, {b});
    expect_overlap({a + " is in data.train and also in data.val", "would score"}, {a}, {b, a});
    expect_overlap({"have the same content", "copy.bin of data.val"}, {a}, {copy});
    expect_overlap({"have the same content", "copy.bin of data.train"}, {a, copy}, {b});
    fs::create_symlink(a, dir_.file("link.bin"));
    fs::create_hard_link(a, dir_.file("hard.bin"));
    for (const char* other : {"link.bin", "hard.bin"}) {
        expect_overlap({other, "are one file"}, {a}, {dir_.file(other)});
        expect_overlap({other, "are one file"}, {a, dir_.file(other)}, {b});
    }
    // Large shards are compared by samples. Empty ones are equal and allowed.
    const SplitIdentity large = identify_split({a}, 0);
    expect_error(ExitCode::usage, {"same content"},
                 [&] { expect_no_overlap({.train = large, .val = identify_split({copy})}); });
    const std::string empty = shard("empty.bin", {}), none = shard("none.bin", {});
    expect_no_overlap({.train = identify_split({a, empty}), .val = identify_split({b, none})});
}

TEST_F(DataIdentityTest, SplitsShareATokenizer) {
    const SplitIdentity bytes = identify_split(prepare("a", "abc"));
    expect_one_tokenizer({.train = bytes, .val = bytes});
    const auto refused = [&](std::initializer_list<std::string> parts, const auto& change) {
        SplitIdentity other = bytes;
        change(other);
        expect_error(ExitCode::data, parts, [&] { expect_one_tokenizer({.train = bytes, .val = other}); });
    };
    using Split = SplitIdentity;
    refused({"bytes (vocab_size 257", "gpt2 (vocab_size 257"}, [](Split& s) { s.tokenizer = "gpt2"; });
    refused({"vocab_size 400"}, [](Split& s) { s.vocab_size = 400; });
    refused({"separator 5,"}, [](Split& s) { s.separator = 5; });
    refused({"vocabulary none", "vocabulary aaaaaaaaaaaa"},
            [](Split& s) { s.vocabulary_sha256 = std::string(64, 'a'); });
    refused({"gpt2 (vocab_size 50257"}, [&](Split& s) { s = identify_split({shard("x.bin", {1})}); });
}

TEST_F(DataIdentityTest, JsonOfAnotherKindIsRefused) {
    for (const char* text : {"", "{", "[]", "3", R"({"train": {}, "val": 3})"})
        EXPECT_THROW(data_identity_from_json(text), JsonError) << text;
}

}  // namespace speedrun::data_identity_test
