#include "data/shard_lock.h"

#include <sstream>
#include <unordered_set>

#include "data/shard.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Returns the problem with the line; empty: none.
std::string problem_of(const std::string& line, ShardInfo& shard) {
    std::istringstream words(line);
    int64_t bytes = 0;
    std::string more;
    if (!(words >> shard.sha256 >> bytes >> shard.file) || words >> more)
        return fmt::format("'{}', expected: SHA-256, bytes, name", shown_text(line));
    if (shard.sha256.size() != 64 || shard.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
        return fmt::format("SHA-256 is '{}', expected 64 digits of 0-9 and a-f", shown_text(shard.sha256));
    if (bytes < kShardHeaderBytes || bytes % 2 != 0)
        return fmt::format("{} bytes, expected {} of header and 2 for each token", bytes, kShardHeaderBytes);
    if (shard.file.find('/') != std::string::npos)
        return fmt::format("name is '{}', expected one of a file in the same folder", shown_text(shard.file));
    shard.tokens = (bytes - kShardHeaderBytes) / 2;
    shard.split = shard.file.find("val") != std::string::npos ? "val" : "train";
    return "";
}

}  // namespace

std::vector<ShardInfo> read_shard_lock(const std::string& path) {
    std::istringstream file(read_text_file(path));
    std::vector<ShardInfo> shards;
    std::unordered_set<std::string> names;
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
        ShardInfo shard;
        std::string problem = problem_of(line, shard);
        if (problem.empty() && !names.insert(shard.file).second)
            problem = fmt::format("{} is there twice", shown_text(shard.file));
        if (!problem.empty()) throw_data("{}:{}: {}", path, number, problem);
        shards.push_back(std::move(shard));
    }
    return shards;
}

}  // namespace speedrun
