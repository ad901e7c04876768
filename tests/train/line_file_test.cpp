// After a temporarily full disk, every line in the file is complete.
#include "train/runlog/line_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "data/text_file.h"
#include "tests/temp_dir.h"

namespace speedrun::line_file_test {

using Begin = LineFile::Begin;

// File size limit: the system writes a line up to the limit, as on a full disk.
class SizeLimit {
  public:
    explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~SizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    SizeLimit(const SizeLimit&) = delete;
    SizeLimit& operator=(const SizeLimit&) = delete;

  private:
    rlimit before_{};
    void (*handler_)(int);
};

TEST(LineFileTest, ALineThatDoesNotFitLeavesNothing) {
    const TempDir dir;
    const std::string path = dir.file("lines");
    LineFile file(path, Begin::empty);
    EXPECT_TRUE(file.write("first line\n"));
    {
        const SizeLimit limit(16);
        EXPECT_FALSE(file.write("second line\n"));  // only 5 of 12 bytes fit
        EXPECT_FALSE(file.write("third line\n"));
        EXPECT_EQ(read_text_file(path), "first line\n");
        EXPECT_TRUE(file.write("4\n"));
    }
    EXPECT_TRUE(file.write("fifth line\n"));
    EXPECT_EQ(read_text_file(path), "first line\n4\nfifth line\n");
    EXPECT_EQ(file.num_dropped(), 2);
    EXPECT_EQ(file.reason(), "File too large");
}

// After a process killed in the middle of a line, the next process starts a new line.
TEST(LineFileTest, LinesAreAppendedAfterATornOne) {
    const TempDir dir;
    const std::string path = dir.write("lines", "whole\ntor");
    LineFile file(path, Begin::at_the_end);
    {
        const SizeLimit limit(12);
        EXPECT_FALSE(file.write("next\n"));
        EXPECT_EQ(read_text_file(path), "whole\ntor");
    }
    EXPECT_TRUE(file.write("next\n"));
    EXPECT_TRUE(file.write("last\n"));
    EXPECT_EQ(read_text_file(path), "whole\ntor\nnext\nlast\n");
    EXPECT_TRUE(LineFile(path, Begin::empty).write("new\n"));
    EXPECT_EQ(read_text_file(path), "new\n");
}

TEST(LineFileTest, FailuresHaveAReason) {
    LineFile full("/dev/full", Begin::at_the_end);
    EXPECT_FALSE(full.write("line\n"));
    EXPECT_EQ(full.reason(), "No space left on device");
    const TempDir dir;
    std::filesystem::create_symlink(dir.write("target", "kept\n"), dir.file("link"));
    LineFile link(dir.file("link"), Begin::empty);
    EXPECT_FALSE(link.is_open());
    EXPECT_EQ(link.reason(), "is a symbolic link");
    EXPECT_FALSE(link.write("line\n"));
    EXPECT_EQ(read_text_file(dir.file("target")), "kept\n");
}

}  // namespace speedrun::line_file_test
