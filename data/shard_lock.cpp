#include "data/shard_lock.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "data/errno_text.h"
#include "data/shard.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// What is wrong with the line, or nothing.
std::string problem_of(const std::string& line, ShardInfo& shard) {
    std::istringstream words(line);
    int64_t bytes = 0;
    std::string more;
    if (!(words >> shard.sha256 >> bytes >> shard.file) || words >> more)
        return fmt::format("'{}', expected: SHA-256, bytes, name", line);
    if (shard.sha256.size() != 64 || shard.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
        return fmt::format("SHA-256 is '{}', expected 64 digits of 0-9 and a-f", shard.sha256);
    if (bytes < kShardHeaderBytes || bytes % 2 != 0)
        return fmt::format("{} bytes, expected {} of header and 2 for each token", bytes, kShardHeaderBytes);
    if (shard.file.find('/') != std::string::npos)
        return fmt::format("name is '{}', expected one of a file in the same folder", shard.file);
    shard.tokens = (bytes - kShardHeaderBytes) / 2;
    shard.split = shard.file.find("val") != std::string::npos ? "val" : "train";
    return "";
}

}  // namespace

std::vector<ShardInfo> read_shard_lock(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw_data("{}: cannot be read: {}", path, errno_text());
    std::vector<ShardInfo> shards;
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
        ShardInfo shard;
        std::string problem = problem_of(line, shard);
        const auto same = [&](const ShardInfo& other) { return other.file == shard.file; };
        if (problem.empty() && std::any_of(shards.begin(), shards.end(), same))
            problem = fmt::format("{} is there twice", shard.file);
        if (!problem.empty()) throw_data("{}:{}: {}", path, number, problem);
        shards.push_back(std::move(shard));
    }
    return shards;
}

}  // namespace speedrun
