// Parsing of UTC times, and lookup of commit times in a repository.
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/text_file.h"
#include "tests/temp_dir.h"
#include "train/records/commit_times.h"
#include "train/records/timeline_checks.h"

namespace speedrun {
namespace {

TEST(TimelineChecksTest, ReadsTimes) {
    EXPECT_EQ(seconds_of_utc("1970-01-02T00:00:01Z"), 86401);
    for (const char* text :
         {"2026-02-30T00:00:00Z", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00Zz", ""})
        EXPECT_FALSE(seconds_of_utc(text)) << text;
}

TEST(CommitTimesTest, KnowsCommitsOfARepository) {
    const TempDir dir;
    const std::string git =
        "git -C " + dir.path() + " -c user.name=a -c user.email=a@b -c init.defaultBranch=main ";
    EXPECT_FALSE(has_history(dir.path(), "track.json"));
    if (std::system((git + "init -q 2>/dev/null").c_str()) != 0)
        GTEST_SKIP() << "git cannot make a repository here";
    dir.write("track.json", "{}");
    EXPECT_FALSE(has_history(dir.path(), "track.json"));
    ASSERT_EQ(std::system((git + "add track.json && " + git + "commit -q -m a").c_str()), 0);
    EXPECT_TRUE(has_history(dir.path(), "track.json"));
    ASSERT_EQ(std::system((git + "rev-parse HEAD >" + dir.file("head")).c_str()), 0);
    const std::string head = read_text_file(dir.file("head")).substr(0, 40);
    ASSERT_TRUE(commit_time(dir.path(), head));
    EXPECT_GT(*commit_time(dir.path(), head), *seconds_of_utc("2026-01-01T00:00:00Z"));
    EXPECT_FALSE(commit_time(dir.path(), "0123456789012345678901234567890123456789"));
}

}  // namespace
}  // namespace speedrun
