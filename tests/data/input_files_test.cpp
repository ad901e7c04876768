// Files, folders, patterns and lists of inputs.
#include "data/text/input_files.h"

#include <gmock/gmock.h>

#include "tests/data/test_files.h"

namespace speedrun::input_files_test {

namespace fs = std::filesystem;

class InputFilesTest : public ::testing::Test {
  protected:
    InputFilesTest() {
        fs::create_directories(dir_.file("in/sub/.git"));
        for (const char* const name :
             {"in/b.txt", "in/a.txt", "in/sub/c.txt", "in/.hidden", "in/sub/.git/config"})
            dir_.write(name, name);
        fs::create_directories(dir_.file("empty"));
    }
    // Returns the files, relative to the folder of the test.
    std::vector<std::string> found(const std::vector<std::string>& inputs,
                                   const std::string& list = "") const {
        std::vector<std::string> full;
        for (const std::string& input : inputs) full.push_back(dir_.file(input));
        std::vector<std::string> files;
        for (const std::string& file : input_files(full, list))
            files.push_back(fs::relative(file, dir_.path()).string());
        return files;
    }
    const TempDir dir_;
};

using Names = std::vector<std::string>;

TEST_F(InputFilesTest, ExpandsFoldersAndPatterns) {
    EXPECT_EQ(found({"in/b.txt", "in/a.txt"}), (Names{"in/b.txt", "in/a.txt"})) << "as given";
    EXPECT_EQ(found({"in"}), (Names{"in/a.txt", "in/b.txt", "in/sub/c.txt"}));
    EXPECT_EQ(found({"in/*.txt"}), (Names{"in/a.txt", "in/b.txt"}));
    EXPECT_EQ(found({"in/{b,a}.txt"}), (Names{"in/a.txt", "in/b.txt"}));
    EXPECT_EQ(found({"in/s*"}), (Names{"in/sub/c.txt"}));
    dir_.write("in/*.txt", "a file of this name");
    EXPECT_EQ(found({"in/*.txt"}), (Names{"in/*.txt"}));
}

TEST_F(InputFilesTest, FollowsNoLinkToFolder) {
    fs::create_directory_symlink(dir_.file("in"), dir_.file("in/sub/loop"));
    EXPECT_EQ(found({"in"}), (Names{"in/a.txt", "in/b.txt", "in/sub/c.txt"}));
    EXPECT_EQ(found({"in/sub/loop"}).size(), 3U) << "named by the user";
}

TEST_F(InputFilesTest, RefusesDoubleStar) {
    for (const char* const pattern : {"in/**/*.txt", "in/**", "{in,empty}/**/c.txt"})
        expect_error(ExitCode::usage, {"** is not supported", "the folder"}, [&] { found({pattern}); });
    EXPECT_EQ(found({"in/**.txt"}), (Names{"in/a.txt", "in/b.txt"}));
}

TEST_F(InputFilesTest, ReadsLists) {
    const std::string list =
        dir_.write("list", "# comment\r\n" + dir_.file("in/b.txt") + "\r\n\n" + dir_.file("in/sub") + "\n");
    EXPECT_EQ(found({}, list), (Names{"in/b.txt", "in/sub/c.txt"}));
    EXPECT_EQ(found({"in/a.txt"}, list), (Names{"in/a.txt", "in/b.txt", "in/sub/c.txt"}));
    dir_.write("list", "\xef\xbb\xbf" + dir_.file("in/a.txt") + "\r\n");
    EXPECT_EQ(found({}, list), Names{"in/a.txt"}) << "with a byte order mark";
    expect_error(ExitCode::data, {"none", "no input in this list"},
                 [&] { found({}, dir_.write("none", "# x\n")); });
    expect_error(ExitCode::data, {"absent"}, [&] { found({}, dir_.file("absent")); });
    expect_error(ExitCode::data, {"list: line 3: nowhere: cannot be read"},
                 [&] { found({}, dir_.write("list", "# x\n\nnowhere\n")); });
}

TEST_F(InputFilesTest, ReportsMissingAndRepeatedFiles) {
    expect_error(ExitCode::data, {"absent.txt", "no such file"}, [&] { found({"absent.txt"}); });
    expect_error(ExitCode::data, {"no file matches", "in/*.md"}, [&] { found({"in/*.md"}); });
    expect_error(ExitCode::data, {"empty", "no file in this folder"}, [&] { found({"empty"}); });
    expect_error(ExitCode::data, {"a.txt", "twice"}, [&] { found({"in/a.txt", "in/*.txt"}); });
    fs::create_symlink(dir_.file("in/a.txt"), dir_.file("link"));
    expect_error(ExitCode::data, {"link", "twice, also as", "in/a.txt"}, [&] {
        found({"in/a.txt", "link"});
    });
    expect_error(ExitCode::data, {"--input-list", "list"},
                 [&] { input_files({"@" + dir_.write("list", "x")}, ""); });
}

}  // namespace speedrun::input_files_test
