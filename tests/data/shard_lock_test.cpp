#include "data/shard_lock.h"

#include "data/data_identity.h"
#include "data/verify.h"
#include "tests/data/test_files.h"

namespace speedrun::shard_lock_test {

const std::string kHash(64, 'a');

class ShardLockTest : public testing::Test {
  protected:
    std::vector<ShardInfo> read(const std::string& text) const {
        return read_shard_lock(dir_.write(kShardLock, text));
    }
    void expect_refused(const std::string& text, const std::string& message) const {
        expect_error(ExitCode::data, {std::string(kShardLock) + message}, [&] { read(text); });
    }
    const TempDir dir_;
};

TEST_F(ShardLockTest, ListsShardsWithTheirSplits) {
    const auto shards =
        read(kHash + " 1030 fineweb_val_000000.bin\n" + kHash + " 1024 fineweb_train_000001.bin\n");
    ASSERT_EQ(shards.size(), 2u);
    EXPECT_EQ(shards[0].file, "fineweb_val_000000.bin");
    EXPECT_EQ(shards[0].split, "val");
    EXPECT_EQ(shards[0].tokens, 3);
    EXPECT_EQ(shards[0].sha256, kHash);
    EXPECT_EQ(shards[1].split, "train");
    EXPECT_EQ(shards[1].tokens, 0);
    EXPECT_TRUE(read("").empty());
}

TEST_F(ShardLockTest, RefusesWhatIsNoLine) {
    const std::string good = kHash + " 1030 a.bin\n";
    expect_refused(good + "\n", ":2: '', expected: SHA-256, bytes, name");
    expect_refused(kHash + " a.bin\n", ":1: '" + kHash + " a.bin', expected: SHA-256");
    expect_refused(kHash + " 1030 a.bin b.bin\n", ":1: '");
    expect_refused("AA 1030 a.bin\n", ":1: SHA-256 is 'AA', expected 64 digits");
    expect_refused(kHash + " 1022 a.bin\n", ":1: 1022 bytes, expected 1024 of header");
    expect_refused(kHash + " 1031 a.bin\n", ":1: 1031 bytes");
    expect_refused(kHash + " 99999999999999999999 a.bin\n", ":1: '");
    expect_refused(kHash + " 1030 ../a.bin\n", ":1: name is '../a.bin'");
    expect_refused(good + good, ":2: a.bin is there twice");
    expect_error(ExitCode::data, {"nowhere: cannot be read: No such file"},
                 [&] { read_shard_lock(dir_.file("nowhere")); });
}

// A run and `prepare --verify` compare shards with the lock in their folder, as with a dataset.json.
TEST_F(ShardLockTest, FilesAreHeldToTheLockBesideThem) {
    const std::string shard = write_tokens(dir_.file("a.bin"), counting_tokens(3)), hash = sha256_file(shard);
    identify_split({shard});
    read(hash + " 1030 a.bin\n");
    identify_split({shard});
    EXPECT_THAT(verify_dataset(dir_.file("")), HasSubstr("1 shards with 3 tokens, as first fetched"));
    read(kHash + " 1030 a.bin\n");
    identify_split({shard}, 0);  // too large to be hashed: only counts are compared
    expect_error(ExitCode::data,
                 {"a.bin: damaged, or not the file that shards.lock describes: SHA-256 is " + hash +
                  ", expected " + kHash},
                 [&] { identify_split({shard}); });
    read(hash + " 1032 a.bin\n");
    expect_error(ExitCode::data, {"a.bin: the header at offset 8 says 3 tokens, expected 4 (shards.lock)"},
                 [&] { identify_split({shard}, 0); });
    read(hash + " 1030 b.bin\n");
    expect_error(ExitCode::data, {"a.bin: not listed in"}, [&] { identify_split({shard}, 0); });
}

}  // namespace speedrun::shard_lock_test
