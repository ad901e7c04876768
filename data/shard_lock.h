// shards.lock: hashes from the first download of each shard, against which later ones are checked. For data without a
// dataset.json; written by data/fineweb10B/download.sh. One line per shard: SHA-256, bytes, name.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"

namespace speedrun {

inline constexpr const char* kShardLock = "shards.lock";  // in the folder of the shards

// Reads a shards.lock. Shards with "val" in their names are validation data, others are training data. Throws a data
// error that names file, line and problem.
std::vector<ShardInfo> read_shard_lock(const std::string& path);

}  // namespace speedrun
