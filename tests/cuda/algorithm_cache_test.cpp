// Cache file of cuBLASLt's algorithms: its owner, its location, and ranks that choose concurrently.
#include "kernels/cuda/vendor/algorithm_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/vendor/matmul_library.h"
#include "tests/temp_dir.h"

namespace speedrun::testing {
namespace {

namespace fs = std::filesystem;

constexpr AlgorithmWords kWords{1, 2, 3, 0xffffffffffffffffu, 5, 6, 7, 8}, kOthers{8, 7, 6};

TEST(AlgorithmCache, IgnoresDamagedLinesAndOtherOwners) {
    const TempDir dir;
    const std::string file = dir.file("a/b.txt");
    AlgorithmCache cache(file, "gpu 1");
    EXPECT_FALSE(cache.find("key"));
    EXPECT_EQ(cache.agree("key", kWords), kWords);
    std::ofstream(file, std::ios::app) << "damaged 1 2 three\n";
    EXPECT_EQ(AlgorithmCache(file, "gpu 1").find("key"), kWords);
    EXPECT_FALSE(AlgorithmCache(file, "gpu 1").find("damaged"));
    EXPECT_FALSE(AlgorithmCache(file, "gpu 2").find("key")) << "another GPU's or version's";
    AlgorithmCache nowhere("/proc/no/such/folder/file.txt", "gpu 1");
    EXPECT_EQ(nowhere.agree("key", kWords), kWords);
    EXPECT_EQ(nowhere.find("key"), kWords) << "kept in memory by this run";
}

// Chooses as a run does; `fastest` is its timing result.
AlgorithmWords choose(AlgorithmCache& cache, const std::string& key, const AlgorithmWords& fastest) {
    const auto kept = cache.find(key);
    return kept ? *kept : cache.agree(key, fastest);
}

// Two runs find no entry and time concurrently. The first to write chooses for both, and no entry of the
// other is lost.
TEST(AlgorithmCache, FirstWriterWins) {
    const TempDir dir;
    const std::string file = dir.file("file.txt");
    AlgorithmCache first(file, "gpu 1"), second(file, "gpu 1");
    EXPECT_EQ(first.agree("both", kWords), kWords);
    EXPECT_EQ(second.agree("both", kOthers), kWords);
    EXPECT_EQ(second.agree("other", kOthers), kOthers);
    EXPECT_EQ(choose(first, "other", kWords), kOthers);
    EXPECT_EQ(AlgorithmCache(file, "gpu 1").find("both"), kWords);
    EXPECT_EQ(AlgorithmCache(file, "gpu 1").find("other"), kOthers);
}

// An entry from the file that the library refused, and that was timed again.
TEST(AlgorithmCache, ReplacesRejectedEntry) {
    const TempDir dir;
    const std::string file = dir.file("file.txt");
    AlgorithmCache(file, "gpu 1").agree("key", kWords);
    AlgorithmCache cache(file, "gpu 1");
    EXPECT_EQ(cache.agree("key", kOthers), kOthers);
    EXPECT_EQ(AlgorithmCache(file, "gpu 1").find("key"), kOthers);
}

// Ranks that are threads of one process agree on every matmul, in any order.
TEST(AlgorithmCache, ThreadsAgreeOnEveryMatmul) {
    const TempDir dir;
    const std::string file = dir.file("file.txt");
    constexpr uint64_t kThreads = 4, kProducts = 50;
    std::array<std::vector<AlgorithmWords>, kThreads> chosen;
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            AlgorithmCache cache(file, "gpu 1");
            for (uint64_t i = 0; i < kProducts; ++i)
                chosen[t].push_back(choose(cache, fmt::format("key{}", i), {t, i}));
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& one : chosen) EXPECT_EQ(one, chosen[0]);
    const AlgorithmCache after(file, "gpu 1");
    for (uint64_t i = 0; i < kProducts; ++i)
        EXPECT_EQ(after.find(fmt::format("key{}", i)), chosen[0][i]) << i;
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << "only the file and its lock";
}

TEST(AlgorithmCache, FolderFollowsEnvironment) {
    struct Variable {
        const char *name, *folder;
    };
    const Variable variables[] = {
        {"SPEEDRUN_CACHE_DIR", "/x"}, {"XDG_CACHE_HOME", "/x/speedrun"}, {"HOME", "/x/.cache/speedrun"}};
    std::vector<std::pair<const char*, std::string>> before;
    for (const Variable& variable : variables) {
        const char* const value = std::getenv(variable.name);
        before.emplace_back(variable.name, value ? value : "");
        setenv(variable.name, "/x", 1);
    }
    for (const Variable& variable : variables) {
        EXPECT_EQ(cache_folder(), variable.folder);
        unsetenv(variable.name);
    }
    EXPECT_EQ(cache_folder(), "") << "no home: nothing is kept";
    for (const auto& [name, value] : before)
        if (!value.empty()) setenv(name, value.c_str(), 1);
}

}  // namespace
}  // namespace speedrun::testing
