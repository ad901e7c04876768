// Verifies the files of a dataset. A flipped bit yields another valid token, so only the hashes in dataset.json, or in
// shards.lock without one, can detect it.
#pragma once

#include <string>

namespace speedrun {

// Checks a dataset's folder: every listed shard exists, is well formed, has its token count and hash, and tokens below
// vocab_size; also the vocabulary's hash. Throws a data error that names all bad files. Returns a line that describes
// the checked dataset.
std::string verify_dataset(const std::string& folder);

}  // namespace speedrun
