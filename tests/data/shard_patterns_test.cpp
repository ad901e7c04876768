#include "data/shard_patterns.h"

#include <chrono>

#include "tests/data/test_files.h"

namespace speedrun::shard_patterns_test {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class ExpandGlobs : public testing::Test {
  protected:
    // Returns the names of the matching files, without the test's folder.
    Names match(const Names& patterns) const {
        Names full;
        for (const std::string& pattern : patterns) full.push_back(dir_.file(pattern));
        Names names;
        for (const std::string& file : expand_globs(full)) names.push_back(file.substr(dir_.file("").size()));
        return names;
    }
    void make(const std::string& file) const {
        fs::create_directories(fs::path(dir_.file(file)).parent_path());
        dir_.write(file, "");
    }
    const TempDir dir_;
};

TEST_F(ExpandGlobs, SortsByBytes) {
    for (const char* name : {"b_2.bin", "b_1.bin", "B_3.bin", "a.bin", "a.txt"}) make(name);
    EXPECT_EQ(match({"*.bin"}), (Names{"B_3.bin", "a.bin", "b_1.bin", "b_2.bin"}));
    EXPECT_EQ(match({"a.bin"}), Names{"a.bin"});
    EXPECT_EQ(match({"b_[12].bin", "a.b?n"}), (Names{"a.bin", "b_1.bin", "b_2.bin"}));
    EXPECT_TRUE(expand_globs({}).empty());
}

TEST_F(ExpandGlobs, KeepsDuplicates) {
    for (const char* name : {"a.bin", "b.bin"}) make(name);
    EXPECT_EQ(match({"*.bin", "a.bin"}), (Names{"a.bin", "a.bin", "b.bin"}));
    EXPECT_EQ(match({"{a,a}.bin"}), (Names{"a.bin", "a.bin"}));
}

TEST_F(ExpandGlobs, ExpandsBraces) {
    for (const char* name : {"a1", "a2", "b1", "c", "{}", "{x"}) make(name);
    EXPECT_EQ(match({"{a,b}1"}), (Names{"a1", "b1"}));
    EXPECT_EQ(match({"{a{1,2},c}"}), (Names{"a1", "a2", "c"}));
    EXPECT_EQ(match({"{a,b}{1,2}"}), (Names{"a1", "a2", "b1"})) << "b2 is not there";
    EXPECT_EQ(match({"c{,.bin}"}), Names{"c"});
    EXPECT_EQ(match({"{c}"}), Names{"c"});
    EXPECT_EQ(match({"{}"}), Names{"{}"});
    EXPECT_EQ(match({"{x"}), Names{"{x"});
}

// Existing literal names have precedence over patterns, also for folders.
TEST_F(ExpandGlobs, TakesExistingNamesLiterally) {
    for (const char* name : {"t[1]/x.bin", "t[1]/y.bin", "t1/x.bin", "a*b", "axb", "q{1,2}/x.bin", "q1/x.bin",
                             "t[1]/s{a,b}.bin", "w[1]?/v[2].bin", "back\\slash[1]/x.bin"})
        make(name);
    EXPECT_EQ(match({"t[1]/x.bin"}), Names{"t[1]/x.bin"});
    EXPECT_EQ(match({"t[1]/?.bin"}), (Names{"t[1]/x.bin", "t[1]/y.bin"}));
    EXPECT_EQ(match({"t[1]/{x,y}.bin"}), (Names{"t[1]/x.bin", "t[1]/y.bin"}));
    EXPECT_EQ(match({"t[1]/s{a,b}.bin"}), Names{"t[1]/s{a,b}.bin"});
    EXPECT_EQ(match({"a*b"}), Names{"a*b"});
    EXPECT_EQ(match({"q{1,2}/*"}), Names{"q{1,2}/x.bin"});
    EXPECT_EQ(match({"{w[1]?,t1}/*.bin"}), (Names{"t1/x.bin", "w[1]?/v[2].bin"}));
    EXPECT_EQ(match({"back\\slash[1]/*.bin"}), Names{"back\\slash[1]/x.bin"});
    fs::remove_all(dir_.file("t[1]"));
    EXPECT_EQ(match({"t[1]/x.bin"}), Names{"t1/x.bin"}) << "a pattern where there is no such folder";
}

TEST_F(ExpandGlobs, ErrorNamesPatternWithoutMatch) {
    make("a.bin");
    expect_error(ExitCode::data, {"none_*.bin", "data/kjv/prepare.sh", "data/fineweb10B/download.sh"}, [&] {
        match({"a.bin", "none_*.bin"});
    });
    make("dataset.json");
    expect_error(ExitCode::data, {"val_*.bin", "has no validation shards", "--val-fraction", "--val-every"},
                 [&] { match({"val_*.bin"}); });
    expect_error(ExitCode::data, {"train_*.bin", "prepare.sh"}, [&] { match({"train_*.bin"}); });
}

std::string repeated(const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
}

// Each of these took minutes, or overflowed the stack, when glob(3) expanded the braces.
TEST_F(ExpandGlobs, LimitsBraces) {
    const auto start = std::chrono::steady_clock::now();
    for (const int depth : {40, 2000, 20000})
        expect_error(ExitCode::usage, {"{a,{a,", "nested deeper than 32"},
                     [&] { expand_globs({repeated("{a,", depth) + repeated("}", depth)}); });
    for (const int count : {14, 26, 5000})
        expect_error(ExitCode::usage, {"{1,2}{1,2}", "more than 10000 names"},
                     [&] { expand_globs({repeated("{1,2}", count)}); });
    expect_error(ExitCode::usage, {"more than 10000 names"},
                 [&] { expand_globs({"{" + repeated("a,", 20000) + "}"}); });
    expect_error(ExitCode::usage, {"a path has at most 4095"},
                 [&] { expand_globs({repeated("*/", 30000)}); });
    expect_error(ExitCode::data, {"no file matches '{{{"}, [&] { expand_globs({repeated("{", 20)}); });
    expect_error(ExitCode::usage, {"nested deeper"}, [&] { expand_globs({repeated("{", 100000)}); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace speedrun::shard_patterns_test
