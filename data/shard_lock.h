// A lock of shards: what their first download found, by which all later ones are known. For data that came without a
// dataset.json; data/fineweb10B/download.sh writes it. A line for each shard: SHA-256, bytes, name.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"

namespace speedrun {

inline constexpr const char* kShardLock = "shards.lock";  // in the folder of the shards

// Shards with "val" in their names are of that split, the others are for training. Throws a data error that names file,
// line, and what is wrong with it.
std::vector<ShardInfo> read_shard_lock(const std::string& path);

}  // namespace speedrun
