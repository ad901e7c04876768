// The file that remembers cuBLASLt's algorithms: whose it is, where it lies, and ranks that save at once.
#include "kernels/cuda/vendor/algorithm_cache.h"

#include <gtest/gtest.h>

#include <atomic>
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

TEST(AlgorithmCache, KeepsWholeLinesOfItsOwner) {
    const TempDir dir;
    const std::string file = dir.file("a/b.txt");
    const AlgorithmWords words{1, 2, 3, 0xffffffffffffffffu, 5, 6, 7, 8};
    {
        AlgorithmCache cache(file, "gpu 1");
        EXPECT_FALSE(cache.find("key"));
        cache.store("key", words);
        EXPECT_TRUE(cache.save());
    }
    std::ofstream(file, std::ios::app) << "damaged 1 2 three\n";
    EXPECT_EQ(AlgorithmCache(file, "gpu 1").find("key"), words);
    EXPECT_FALSE(AlgorithmCache(file, "gpu 1").find("damaged"));
    EXPECT_FALSE(AlgorithmCache(file, "gpu 2").find("key")) << "another GPU's or version's";
    AlgorithmCache nowhere("/proc/no/such/folder/file.txt", "gpu 1");
    nowhere.store("key", words);
    EXPECT_FALSE(nowhere.save());
}

// Ranks that are threads of one process save at the same time.
TEST(AlgorithmCache, ThreadsMaySaveAtOnce) {
    const TempDir folder;
    constexpr int kThreads = 4, kTimes = 100;
    std::atomic<int> failed = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            AlgorithmCache cache(folder.file("file.txt"), "gpu 1");
            for (int i = 0; i < kTimes; ++i) {
                cache.store("key", {});
                failed += !cache.save();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1)
        << "a file under a temporary name is left";
}

TEST(AlgorithmCache, FolderIsTheFirstThatIsNamed) {
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
