// Identity of the data of a run: names and content of its shards. Datasets with equal identities give equal batches, in any
// folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/shard.h"

namespace speedrun {

// Bytes of a split up to which a run hashes all of it before it starts: KJV's 8 MB take 36 ms at most. Larger ones are for
// `prepare --verify`: 20 GB would take longer than the start-up that runs promise.
inline constexpr int64_t kHashedAtStart = int64_t{64} << 20;

struct ShardIdentity {
    std::string file;  // its name, without folders
    int64_t tokens = 0;
    // Hash of the whole file: computed where SplitIdentity::hashed, else copied from dataset.json or shards.lock, or empty.
    std::string sha256;
    // sampled_sha256() of the file.
    std::string sampled_sha256;

    // Not stored.
    std::string path{};
    Shard::FileId id{};
};

// A split of a dataset, shards in the order in which they are read.
struct SplitIdentity {
    std::string tokenizer, vocabulary_sha256;
    int64_t vocab_size = 0, separator = 0;
    SeparatorPlace separators = SeparatorPlace::before;
    bool hashed = false;  // sha256 of all shards is that of their content
    std::vector<ShardIdentity> shards;
};

struct DataIdentity {
    SplitIdentity train, val;
};

// SHA-256 of a file's size and of four blocks of 4 KiB, evenly spread from its first byte to its last. Two texts differ in
// one of them; a few changed tokens elsewhere are not seen.
std::string sampled_sha256(const Shard& shard);

// Identifies the shards, and compares them with the dataset.json or shards.lock that lists them: token counts always, and
// hashes if all files together have at most `hashed_bytes`. Throws a data error that names file, expected and actual value;
// or one for a file that is missing or not listed.
SplitIdentity identify_split(const std::vector<std::string>& files, int64_t hashed_bytes = kHashedAtStart);

// Throws a data error if the splits hold tokens of different tokenizers.
void expect_one_tokenizer(const DataIdentity& data);

// Throws a usage error if a file, or one content, is twice in a split or in both.
void expect_no_overlap(const DataIdentity& data);

// Describes differences, one in each string: "data.train: train_000003.bin is here and not there". Only hashes that both
// have are compared. `there` is the older one.
std::vector<std::string> split_differences(const std::string& key, const SplitIdentity& there,
                                           const SplitIdentity& here);
std::vector<std::string> data_differences(const DataIdentity& there, const DataIdentity& here);

// JSON, as checkpoint.json and data.json hold it. Reading throws a JsonError for another text.
std::string data_identity_to_json(const DataIdentity& data);
DataIdentity data_identity_from_json(std::string_view text);

}  // namespace speedrun
