// Are the files of a dataset those that prepare wrote? A flipped bit is a token like any other, so only the
// hashes in dataset.json can tell, or those in shards.lock, of files that came without it.
#pragma once

#include <string>

namespace speedrun {

// Everything of a dataset's folder: every shard that is listed is there and well formed, and has its
// count and hash and tokens below vocab_size; and the vocabulary's hash. Throws a data error that names all
// files that are wrong. Returns a line that says what was right.
std::string verify_dataset(const std::string& folder);

}  // namespace speedrun
