// Are the files of a dataset those that prepare wrote? A flipped bit is a token like any other, so only the
// hashes in dataset.json can tell, or those in shards.lock, of files that came without it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

// What a run hashes of a split before it starts: KJV's 8 MB whole, at 2 GB/s in 36 ms at most. Larger ones
// are for `prepare --verify`: 20 GB would take longer than the start-up that runs promise.
inline constexpr int64_t kHashedAtStart = int64_t{64} << 20;  // bytes

// Compares shards with the dataset.json or shards.lock beside them, where there is one: token counts always, and the hashes
// if all the files together have at most `hashed_bytes`. Throws a data error that names file, expected and
// actual value; or one for a file that is missing or not listed.
void verify_shards(const std::vector<std::string>& files, int64_t hashed_bytes);

// Everything of a dataset's folder: every shard that is listed is there and well formed, and has its
// count and hash and tokens below vocab_size; and the vocabulary's hash. Throws a data error that names all
// files that are wrong. Returns a line that says what was right.
std::string verify_dataset(const std::string& folder);

}  // namespace speedrun
