#include "data/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "data/dataset.h"
#include "data/token_dataset.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

void expect_count(const std::string& path, const ShardInfo& expected, int64_t actual) {
    if (actual == expected.tokens) return;
    throw_data("{}: the header at offset 8 says {} tokens, expected {} (dataset.json)", path, actual,
               expected.tokens);
}

void expect_hash(const std::string& path, const std::string& expected) {
    const std::string actual = sha256_file(path);
    if (actual == expected) return;
    throw_data("{}: damaged, or not the file that dataset.json describes: SHA-256 is {}, expected {}", path,
               actual, expected);
}

const ShardInfo& listed(const DatasetInfo& info, const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    const auto found = std::find_if(info.shards.begin(), info.shards.end(),
                                    [&](const ShardInfo& shard) { return shard.file == name; });
    if (found == info.shards.end()) throw_data("{}: not listed in the dataset.json beside it", path);
    return *found;
}

// What is wrong with a shard, or nothing.
std::string problem_of(const std::string& path, const ShardInfo& expected, const DatasetInfo& info) {
    try {
        const TokenDataset data({path}, info.vocab_size, info.separator);
        expect_count(path, expected, data.num_tokens());
        (void)data.window(0, 0, data.num_tokens());  // checks the values
        expect_hash(path, expected.sha256);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

void verify_shards(const std::vector<std::string>& files, int64_t hashed_bytes) {
    std::map<fs::path, std::optional<DatasetInfo>> folders;
    int64_t bytes = 0;
    for (const std::string& file : files) bytes += kShardHeaderBytes + 2 * Shard(file).size();
    for (const std::string& file : files) {
        const auto [entry, is_new] = folders.try_emplace(fs::path(file).parent_path());
        if (is_new) entry->second = find_dataset_info({file});
        if (!entry->second) continue;
        const ShardInfo& expected = listed(*entry->second, file);
        expect_count(file, expected, Shard(file).size());
        if (bytes <= hashed_bytes) expect_hash(file, expected.sha256);
    }
}

std::string verify_dataset(const std::string& folder) {
    const DatasetInfo info = read_dataset_info((fs::path(folder) / "dataset.json").string());
    std::string problems;
    const auto add = [&](const std::string& text) { problems += (problems.empty() ? "" : "\n") + text; };
    int64_t tokens = 0;
    std::vector<std::string> files;
    for (const ShardInfo& shard : info.shards) {
        files.push_back((fs::path(folder) / shard.file).string());
        tokens += shard.tokens;
        if (const std::string problem = problem_of(files.back(), shard, info); !problem.empty()) add(problem);
    }
    try {
        find_vocabulary(info, files);
    } catch (const Error& error) {
        add(error.what());
    }
    if (!problems.empty()) throw_data("{}", problems);
    return fmt::format("{}: dataset '{}', {} shards with {} tokens, as prepared", folder, info.name,
                       info.shards.size(), tokens);
}

}  // namespace speedrun
