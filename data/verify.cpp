#include "data/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "data/dataset.h"
#include "data/shard_lock.h"
#include "data/token_dataset.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// What a folder says of its shards, and the file in which it does.
struct Listing {
    std::string file;
    DatasetInfo info;
};

std::optional<Listing> find_listing(const fs::path& folder) {
    const fs::path json = folder / "dataset.json", lock = folder / kShardLock;
    if (fs::exists(json)) return Listing{"dataset.json", read_dataset_info(json.string())};
    if (!fs::exists(lock)) return std::nullopt;
    DatasetInfo info;
    info.shards = read_shard_lock(lock.string());
    return Listing{kShardLock, info};
}

// A file of the listing, of which the header says so many tokens.
struct Found {
    std::string path;
    int64_t tokens;
};
void expect_count(const Listing& listing, const ShardInfo& expected, const Found& found) {
    if (found.tokens == expected.tokens) return;
    throw_data("{}: the header at offset 8 says {} tokens, expected {} ({})", found.path, found.tokens,
               expected.tokens, listing.file);
}

void expect_hash(const Listing& listing, const ShardInfo& expected, const Found& found) {
    const std::string actual = sha256_file(found.path);
    if (actual == expected.sha256) return;
    throw_data("{}: damaged, or not the file that {} describes: SHA-256 is {}, expected {}", found.path,
               listing.file, actual, expected.sha256);
}

const ShardInfo& listed(const Listing& listing, const std::string& path) {
    const std::vector<ShardInfo>& shards = listing.info.shards;
    const std::string name = fs::path(path).filename().string();
    const auto found = std::find_if(shards.begin(), shards.end(),
                                    [&](const ShardInfo& shard) { return shard.file == name; });
    if (found == shards.end()) throw_data("{}: not listed in the {} beside it", path, listing.file);
    return *found;
}

// What is wrong with a shard, or nothing.
std::string problem_of(const Listing& listing, const ShardInfo& expected, const std::string& path) {
    try {
        const TokenDataset data({path}, listing.info.vocab_size, listing.info.separator);
        const Found found{path, data.num_tokens()};
        expect_count(listing, expected, found);
        (void)data.window(0, 0, found.tokens);  // checks the values
        expect_hash(listing, expected, found);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

void verify_shards(const std::vector<std::string>& files, int64_t hashed_bytes) {
    std::map<fs::path, std::optional<Listing>> folders;
    int64_t bytes = 0;
    for (const std::string& file : files) bytes += kShardHeaderBytes + 2 * Shard(file).size();
    for (const std::string& file : files) {
        const auto [entry, is_new] = folders.try_emplace(fs::path(file).parent_path());
        if (is_new) entry->second = find_listing(entry->first);
        if (!entry->second) continue;
        const ShardInfo& expected = listed(*entry->second, file);
        const Found found{file, Shard(file).size()};
        expect_count(*entry->second, expected, found);
        if (bytes <= hashed_bytes) expect_hash(*entry->second, expected, found);
    }
}

std::string verify_dataset(const std::string& folder) {
    const std::optional<Listing> listing = find_listing(folder);
    if (!listing)
        throw_data("{}: missing, and so is a {} beside it", (fs::path(folder) / "dataset.json").string(),
                   kShardLock);
    const DatasetInfo& info = listing->info;
    std::string problems;
    const auto add = [&](const std::string& text) { problems += (problems.empty() ? "" : "\n") + text; };
    int64_t tokens = 0;
    std::vector<std::string> files;
    for (const ShardInfo& shard : info.shards) {
        files.push_back((fs::path(folder) / shard.file).string());
        tokens += shard.tokens;
        if (const std::string problem = problem_of(*listing, shard, files.back()); !problem.empty())
            add(problem);
    }
    try {
        find_vocabulary(info, files);
    } catch (const Error& error) {
        add(error.what());
    }
    if (!problems.empty()) throw_data("{}", problems);
    return fmt::format("{}: dataset '{}', {} shards with {} tokens, as {}", folder, info.name,
                       info.shards.size(), tokens,
                       listing->file == kShardLock ? "first fetched" : "prepared");
}

}  // namespace speedrun
