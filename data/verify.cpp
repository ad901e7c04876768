#include "data/verify.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/shard_listing.h"
#include "data/shard_lock.h"
#include "data/token_dataset.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Returns the problem with a shard; empty: none.
std::string problem_of(const Listing& listing, const ShardInfo& expected, const std::string& path) {
    try {
        const TokenDataset data({path}, listing.info.vocab_size, listing.info.separator);
        if (data.num_tokens() != expected.tokens)
            throw_data("{}: the header at offset 8 says {} tokens, expected {} ({})", path, data.num_tokens(),
                       expected.tokens, listing.file);
        constexpr int64_t kTokensRead = 1 << 20;
        std::vector<uint16_t> tokens;
        for (int64_t first = 0; first < data.num_tokens(); first += kTokensRead) {
            tokens.resize(static_cast<size_t>(std::min(kTokensRead, data.num_tokens() - first)));
            data.read(first, tokens);  // checks token values
        }
        const std::string actual = sha256_file(path);
        if (actual != expected.sha256)
            throw_data("{}: damaged, or not the file that {} describes: SHA-256 is {}, expected {}", path,
                       listing.file, actual, expected.sha256);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

std::string verify_dataset(const std::string& folder) {
    const std::unique_ptr<const Listing> listing = read_listing(folder);
    if (!listing)
        throw_data("{}: missing, as is {} in the same folder", (fs::path(folder) / "dataset.json").string(),
                   kShardLock);
    const DatasetInfo& info = listing->info;
    std::string problems;
    const auto add = [&](const std::string& text) { problems += (problems.empty() ? "" : "\n") + text; };
    int64_t tokens = 0;
    for (const ShardInfo& shard : info.shards) {
        tokens += shard.tokens;
        const std::string problem = problem_of(*listing, shard, (fs::path(folder) / shard.file).string());
        if (!problem.empty()) add(problem);
    }
    try {
        find_vocabulary(info);
    } catch (const Error& error) {
        add(error.what());
    }
    if (!problems.empty()) throw_data("{}", problems);
    return fmt::format("{}: dataset '{}', {} shards with {} tokens, as {}", folder, info.name,
                       info.shards.size(), tokens,
                       listing->file == kShardLock ? "first fetched" : "prepared");
}

}  // namespace speedrun
