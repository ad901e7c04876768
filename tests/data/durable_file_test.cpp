// Files of any size, written in pieces of any size, are stored completely, with and without the page cache (O_DIRECT).
// Covers: data/xxh128.cpp
#include "data/durable_file.h"
#include "tests/errors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "data/xxh128.h"
#include "tests/temp_dir.h"

namespace speedrun::durable_file_test {

constexpr size_t kMiB = size_t{1} << 20;

std::string some_bytes(size_t bytes) {
    std::string text(bytes, '\0');
    uint32_t state = 1;
    for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    return text;
}

// Records size and O_DIRECT flag of each write. Can write partially or refuse O_DIRECT.
class Watched final : public FileSystem {
  public:
    int64_t write(int file, const void* data, size_t bytes) override {
        sizes.push_back(bytes);
        if (left >= 0) {
            if (left == 0) {
                errno = ENOSPC;
                return -1;
            }
            bytes = std::min(bytes, static_cast<size_t>(left));
            left -= static_cast<int64_t>(bytes);
        }
        const int64_t written = FileSystem::write(file, data, bytes);
        direct.push_back((::fcntl(file, F_GETFL) & O_DIRECT) != 0);
        return written;
    }

    std::vector<size_t> sizes;
    std::vector<bool> direct;
    int64_t left = -1;  // free bytes of the disk; -1: unlimited
};

void write_in_pieces(DurableFile& file, const std::string& text, size_t piece) {
    for (size_t at = 0; at < text.size(); at += piece)
        file.write(text.data() + at, std::min(piece, text.size() - at));
}

TEST(DurableFileTest, AnySizeInAnyPiecesIsWhole) {
    const TempDir dir;
    for (const size_t bytes :
         {size_t{0}, size_t{5}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 4096, 9 * kMiB + 77}) {
        for (const size_t piece : {size_t{1000}, size_t{4096}, 3 * kMiB, 20 * kMiB}) {
            Watched system;
            const std::string text = some_bytes(bytes), path = dir.file("file");
            DurableFile file(system, path);
            write_in_pieces(file, text, piece);
            EXPECT_EQ(file.bytes(), static_cast<int64_t>(bytes));
            const std::string sum = file.finish();
            EXPECT_EQ(sum, xxh128_file(path));
            EXPECT_TRUE(read_text(path) == text) << bytes << " bytes in pieces of " << piece;
            EXPECT_EQ(system.sizes.size(), (bytes + 4 * kMiB - 1) / (4 * kMiB));
        }
    }
}

// Whole blocks of a large file bypass the page cache if the temporary file system supports it.
TEST(DurableFileTest, WholeBlocksGoPastThePageCache) {
    const TempDir dir;
    const int probe = ::open(dir.write("probe", "").c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    if (probe < 0) GTEST_SKIP() << "the file system of " << dir.path() << " has no O_DIRECT";
    ::close(probe);
    Watched system;
    DurableFile file(system, dir.file("file"));
    write_in_pieces(file, some_bytes(9 * kMiB), kMiB);
    file.finish();
    EXPECT_EQ(system.sizes, (std::vector<size_t>{4 * kMiB, 4 * kMiB, kMiB}));
    EXPECT_EQ(system.direct, (std::vector<bool>{true, true, true}));
    Watched again;
    DurableFile small(again, dir.file("small"));
    write_in_pieces(small, some_bytes(4 * kMiB + 4096), kMiB);
    small.finish();
    EXPECT_EQ(again.direct, (std::vector<bool>{true, false}))
        << "for a block alone nobody waits for the disk";
}

// In-memory file systems may not support O_DIRECT.
TEST(DurableFileTest, FileSystemsWithoutThatWayTakeTheOther) {
    if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
    const TempDir dir("/dev/shm");
    const std::string text = some_bytes(9 * kMiB + 77), path = dir.file("file");
    DurableFile file(real_file_system(), path);
    write_in_pieces(file, text, kMiB);
    const std::string sum = file.finish();
    EXPECT_EQ(sum, xxh128_file(path));
    EXPECT_TRUE(read_text(path) == text);
}

TEST(DurableFileTest, AFullDiskIsAnErrorThatNamesTheFile) {
    const TempDir dir;
    for (const int64_t room : {int64_t{4096}, static_cast<int64_t>(5 * kMiB + 12), int64_t{0}}) {
        Watched system;
        system.left = room;
        const std::string path = dir.file("file");
        DurableFile file(system, path);
        const std::string error = error_of(ExitCode::failure, [&] {
            write_in_pieces(file, some_bytes(9 * kMiB), kMiB);
            file.finish();
        });
        EXPECT_EQ(error, path + ": writing failed: No space left on device") << "room for " << room;
        EXPECT_EQ(std::filesystem::file_size(path), static_cast<uintmax_t>(room));
    }
}

void write_output(const std::string& path, const std::vector<std::string>& parts) {
    OutputFile file(path);
    for (const std::string& part : parts) file.write(part);
    file.finish();
}

// `--out /dev/null` as root must not replace the device by a file.
TEST(OutputFileTest, DevicesAndLinksAreNotReplaced) {
    namespace fs = std::filesystem;
    const TempDir dir;
    const std::string path = dir.file("out");
    write_output(path, {"one", "two"});
    write_output(path, {"three"});
    EXPECT_EQ(read_text(path), "three");
    EXPECT_FALSE(fs::exists(path + ".part"));
    fs::create_directory(dir.file("folder"));
    for (const char* target : {"out", "folder/new"}) {
        fs::create_symlink(target, dir.file("link"));
        write_output(dir.file("link"), {"by a link"});
        EXPECT_TRUE(fs::is_symlink(dir.file("link")));
        EXPECT_EQ(read_text(dir.file(target)), "by a link");
        fs::remove(dir.file("link"));
    }
    write_output("/dev/null", {"gone"});
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    fs::create_symlink("/dev/full", dir.file("full"));
    for (const std::string& full : {std::string("/dev/full"), dir.file("full")})
        EXPECT_THROW(write_output(full, {"text"}), Error);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
    EXPECT_TRUE(fs::is_symlink(dir.file("full")));
    EXPECT_THROW(write_output(dir.file("folder"), {"text"}), Error);
    // Without finish() the file keeps its content.
    { OutputFile(path).write("lost"); }
    EXPECT_EQ(read_text(path), "by a link");
    EXPECT_FALSE(fs::exists(path + ".part"));
    // A link in a folder of the program is replaced.
    fs::create_symlink(path, dir.file("own"));
    write_file(dir.file("own"), "text", OutputFile::Path::own);
    EXPECT_FALSE(fs::is_symlink(dir.file("own")));
    EXPECT_EQ(read_text(dir.file("own")) + read_text(path), "textby a link");
    // Symbolic links in a run's folder are not followed.
    fs::create_symlink(path, dir.file("stray"));
    EXPECT_THROW(write_durable(real_file_system(), dir.file("stray"), "text"), Error);
    EXPECT_EQ(read_text(path), "by a link");
}

// Hashes computed by `xxhsum -H2`. The first one is also in the specification.
TEST(Xxh128Test, IsWhatOthersCompute) {
    const TempDir dir;
    EXPECT_EQ(xxh128_file(dir.write("empty", "")), "99aa06d3014798d86001c324468d497f");
    EXPECT_EQ(xxh128_file(dir.write("abc", "abc")), "06b05ab6733a618578af5f94892f3950");
    EXPECT_EQ(xxh128_file(dir.write("long", std::string(3'000'000, 'x'))),
              "1f895bac9b72598405afde2f9995314a");
    Xxh128 hash;
    hash.update("ab", 2);
    hash.hex();  // hex() does not change the state
    hash.update("c", 1);
    EXPECT_EQ(hash.hex(), "06b05ab6733a618578af5f94892f3950");
    EXPECT_THROW(xxh128_file(dir.file("absent")), Error);
}

}  // namespace speedrun::durable_file_test
