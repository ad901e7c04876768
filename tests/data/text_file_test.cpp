// Regular files and anonymous pipes are read. Other kinds are refused before they block or fill the memory.
#include "data/text_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "data/open_file.h"
#include "tests/data/test_files.h"

namespace speedrun::text_file_test {

TEST(TextFileTest, ReadsFilesAndLinks) {
    const TempDir dir;
    using std::string_literals::operator""s;
    const std::string bytes = "a\0\xff\n"s + std::string(300'000, 'b'), path = dir.write("a", bytes);
    std::filesystem::create_symlink(path, dir.file("link"));
    EXPECT_EQ(read_text_file(path), bytes);
    EXPECT_EQ(read_text_file(dir.file("link"), bytes.size()), bytes);
    EXPECT_EQ(read_text_file(dir.write("empty", "")), "");
    expect_error(ExitCode::data, {path, "300004 bytes or more, at most 300003"},
                 [&] { read_text_file(path, bytes.size() - 1); });
    EXPECT_THAT(read_text_file("/proc/self/status"), HasSubstr("Pid:"));  // fstat() says 0 bytes
}

TEST(TextFileTest, RejectsOtherFileTypes) {
    const TempDir dir;
    ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);
    std::filesystem::create_symlink("loop", dir.file("loop"));
    expect_error(ExitCode::data, {dir.path(), "a folder, expected a regular file"},
                 [&] { read_text_file(dir.path()); });
    expect_error(ExitCode::data, {"a named pipe"}, [&] { read_text_file(dir.file("pipe")); });
    expect_error(ExitCode::data, {"/dev/zero", "a device"}, [] { read_text_file("/dev/zero"); });
    expect_error(ExitCode::data, {"symbolic links"}, [&] { read_text_file(dir.file("loop")); });
    expect_error(ExitCode::data, {"absent: cannot be read: No such file"},
                 [&] { read_text_file(dir.file("absent")); });
    for (const std::string& path : {dir.path(), dir.file("pipe"), std::string("/dev/zero")})
        expect_error(ExitCode::data, {path, "expected a regular file"}, [&] { expect_regular_file(path); });
    expect_regular_file(dir.write("a", "a"));
    expect_regular_file(dir.file("absent"));
}

// `speedrun train <(command)`: the shell passes the path of a pipe.
TEST(TextFileTest, ReadsAnonymousPipes) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    ASSERT_EQ(::write(ends[1], "config", 6), 6);
    ::close(ends[1]);
    const std::string path = "/proc/self/fd/" + std::to_string(ends[0]);
    expect_error(ExitCode::data, {"6 bytes or more, at most 3"}, [&] {
        std::array<int, 2> more{};
        ASSERT_EQ(::pipe(more.data()), 0);
        ASSERT_EQ(::write(more[1], "config", 6), 6);
        ::close(more[1]);
        read_text_file("/proc/self/fd/" + std::to_string(more[0]), 3);
    });
    EXPECT_EQ(read_text_file(path), "config");
    ::close(ends[0]);
}

TEST(TextFileTest, TruncatesAndEscapesText) {
    EXPECT_EQ(shown_text("a \xc3\xa4"), "a \xc3\xa4");
    EXPECT_EQ(shown_text("a\nb\x1b"), "a\\nb\\u001b");
    EXPECT_EQ(shown_text("\xff"), "\xef\xbf\xbd");
    EXPECT_EQ(shown_text(std::string(10'000'000, 'a')), std::string(100, 'a') + "...");
    EXPECT_TRUE(is_utf8("\xc3\xa4"));
    EXPECT_FALSE(is_utf8("\xc3"));
}

}  // namespace speedrun::text_file_test
