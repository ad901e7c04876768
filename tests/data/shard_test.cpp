#include "data/shard.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/data/test_files.h"

namespace speedrun::shard_test {

namespace fs = std::filesystem;

// Returns the bytes of a shard file with this header and a total of `bytes` bytes.
std::string raw_shard(int32_t magic, int32_t version, int32_t count, size_t bytes) {
    std::string content(bytes, '\0');
    const int32_t header[] = {magic, version, count};
    std::memcpy(content.data(), header, std::min(bytes, sizeof(header)));
    return content;
}

TEST(Shard, WritesAndReads) {
    const TempDir dir;
    const std::vector<uint16_t> tokens = {1, 2, 50256, 65535, 0};
    const std::string path = write_tokens(dir.file("a.bin"), tokens);
    const Shard shard(path);
    shard.will_need();
    EXPECT_EQ(shard.path(), path);
    EXPECT_EQ(shard.size(), 5);
    EXPECT_EQ(shard.read_all(), tokens);
    EXPECT_EQ(fs::file_size(path), 1024u + 2 * 5);
    EXPECT_FALSE(fs::exists(path + ".part"));
}

TEST(Shard, HasTheDocumentedLayout) {
    const TempDir dir;
    const std::string path = write_tokens(dir.file("a.bin"), {0x0102, 0x0304});
    std::string expected = raw_shard(20240520, 1, 2, 1028);
    expected[1024] = 2, expected[1025] = 1, expected[1026] = 4, expected[1027] = 3;
    EXPECT_EQ(read_text(path), expected);
}

TEST(Shard, MayBeEmpty) {
    const TempDir dir;
    EXPECT_EQ(Shard(write_tokens(dir.file("a.bin"), {})).size(), 0);
}

TEST(Shard, Moves) {
    const TempDir dir;
    Shard first(write_tokens(dir.file("a.bin"), {1, 2, 3}));
    Shard second(std::move(first));
    EXPECT_EQ(first.size(), 0);
    EXPECT_EQ(second.read_all()[2], 3);
    Shard third(write_tokens(dir.file("b.bin"), {9}));
    third = std::move(second);
    EXPECT_EQ(third.size(), 3);
    EXPECT_EQ(third.read_all()[0], 1);
    EXPECT_EQ(third.path(), dir.file("a.bin"));
}

TEST(Shard, ReplacesAFileThatIsOpen) {
    const TempDir dir;
    const Shard old(write_tokens(dir.file("a.bin"), {1, 2, 3}));
    write_tokens(dir.file("a.bin"), {7});
    EXPECT_EQ(old.read_all()[2], 3);  // the old file stays open
    EXPECT_EQ(Shard(dir.file("a.bin")).size(), 1);
}

// Changes of a file in use: each is an error that names the shard, for any part that is read.
TEST(Shard, ReportsAFileThatChanges) {
    const TempDir dir;
    const std::string path = dir.file("a.bin");
    const auto expect_noticed = [&](const std::string& message, const auto& change) {
        write_tokens(path, counting_tokens(5000));
        const Shard shard(path);
        std::vector<uint16_t> first(1), last(1);
        shard.read(0, first);
        change();
        expect_error(ExitCode::data, {path, "while it was in use", message}, [&] { shard.read(0, first); });
        expect_error(ExitCode::data, {path, message}, [&] { shard.read(4999, last); });
    };
    expect_noticed("11024 bytes when it was opened, now 0", [&] { fs::resize_file(path, 0); });
    expect_noticed("11024 bytes when it was opened, now 1026", [&] { fs::resize_file(path, 1026); });
    expect_noticed("now 20000", [&] { fs::resize_file(path, 20000); });
    expect_noticed("written to", [&] {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(2000);
        file.put('x');
        file.close();
        fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
    });
}

TEST(Shard, IsReadAfterItIsDeleted) {
    const TempDir dir;
    const Shard shard(write_tokens(dir.file("a.bin"), {1, 2, 3}));
    fs::remove(dir.file("a.bin"));
    EXPECT_EQ(shard.read_all()[2], 3);
}

// Beyond half of the descriptor limit, the file is opened for each read; a replaced file is detected.
TEST(Shard, ManyShardsNeedFewDescriptors) {
    const TempDir dir;
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit few{.rlim_cur = 64, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<Shard> shards;
    for (uint16_t i = 0; i < 200; ++i)
        shards.emplace_back(write_tokens(dir.file(std::to_string(i) + ".bin"), {i}));
    for (uint16_t i = 0; i < 200; ++i) EXPECT_EQ(shards[i].read_all()[0], i);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    write_tokens(dir.file("199.bin"), {7});
    expect_error(ExitCode::data, {"199.bin", "replaced by another file"}, [&] { shards[199].read_all(); });
    fs::remove(dir.file("199.bin"));
    expect_error(ExitCode::data, {"199.bin", "No such file"}, [&] { shards[199].read_all(); });
}

TEST(Shard, RejectsDamage) {
    const TempDir dir;
    struct Case {
        std::string content;
        std::initializer_list<std::string> message;
    };
    const Case cases[] = {
        {"", {"offset 0", "1024", "has 0"}},
        {raw_shard(kShardMagic, 1, 0, 1023), {"1024", "has 1023"}},
        {raw_shard(278895051, 1, 0, 1024), {"magic at offset 0 is 278895051", "20240520"}},
        {raw_shard(kShardMagic, 2, 0, 1024), {"version at offset 4 is 2", "expected 1"}},
        {raw_shard(kShardMagic, 1, -5, 1024), {"count at offset 8 is -5", "expected 0 or more"}},
        {raw_shard(kShardMagic, 1, 10, 1043), {"has 1043 bytes", "expected 1044", "truncated"}},
        {raw_shard(kShardMagic, 1, 10, 1046), {"has 1046 bytes", "expected 1044", "trailing"}},
        {raw_shard(kShardMagic, 1, INT32_MAX, 1024), {"expected 4294968318"}},
    };
    for (const Case& bad : cases) {
        const std::string path = dir.write("bad.bin", bad.content);
        expect_error(ExitCode::data, bad.message, [&] { Shard shard(path); });
        expect_error(ExitCode::data, {path}, [&] { Shard shard(path); });
    }
    expect_error(ExitCode::data, {"absent.bin", "No such file"},
                 [&] { Shard shard(dir.file("absent.bin")); });
    expect_error(ExitCode::data, {"not a regular file"}, [&] { Shard shard(dir.path()); });
    ASSERT_EQ(mkfifo(dir.file("fifo").c_str(), 0600), 0);
    expect_error(ExitCode::data, {"not a regular file"}, [&] { Shard shard(dir.file("fifo")); });
}

TEST(Shard, WritingReportsTheFileAndLeavesNothing) {
    const TempDir dir;
    expect_error(ExitCode::failure, {"absent/a.bin.part", "No such file"},
                 [&] { write_shard(dir.file("absent/a.bin"), counting_tokens(3)); });
    fs::create_directory(dir.file("folder.bin"));
    expect_error(ExitCode::failure, {"folder.bin", "a folder"},
                 [&] { write_shard(dir.file("folder.bin"), counting_tokens(3)); });
    EXPECT_FALSE(fs::exists(dir.file("folder.bin.part")));
}

}  // namespace speedrun::shard_test
