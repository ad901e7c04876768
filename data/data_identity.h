// Identity of a run's data: names and content of its shards. Datasets with equal identities yield equal batches, in any
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

// Size up to which a run hashes a whole split before it starts: KJV's 8 MB take at most 36 ms. Larger splits are
// checked by `prepare --verify`: 20 GB would exceed a run's start-up time.
inline constexpr int64_t kHashedAtStart = int64_t{64} << 20;

struct ShardIdentity {
    std::string file;  // file name without folders
    int64_t tokens = 0;
    // SHA-256 of the whole file. Computed if SplitIdentity::hashed; otherwise copied from dataset.json or shards.lock,
    // or empty.
    std::string sha256;
    // sampled_sha256() of the file.
    std::string sampled_sha256;

    // Not stored.
    std::string path{};
    Shard::FileId id{};
};

// A split of a dataset; shards in reading order.
struct SplitIdentity {
    std::string tokenizer, vocabulary_sha256;
    int64_t vocab_size = 0, separator = 0;
    SeparatorPosition separators = SeparatorPosition::before;
    bool hashed = false;                 // sha256 of all shards is computed from their content
    std::vector<int64_t> source_shards;  // shards of each source of a mixture, in order; empty: no mixture
    std::vector<ShardIdentity> shards;
};

struct DataIdentity {
    SplitIdentity train, val;
};

// SHA-256 of a file's size and of four blocks of 4 KiB, evenly spaced from its first to its last byte. Different texts
// differ in one of them; a few changed tokens elsewhere are not detected.
std::string sampled_sha256(const Shard& shard);

// Identifies the shards and compares them with the dataset.json or shards.lock that lists them: always token counts,
// and hashes if all files together have at most `hashed_bytes`. Throws a data error that names file, expected and
// actual value; also for a file that is missing or not listed.
SplitIdentity identify_split(const std::vector<std::string>& files, int64_t hashed_bytes = kHashedAtStart);

// True if equal token values mean equal text.
bool same_tokenizer(const SplitIdentity& a, const SplitIdentity& b);
// "bytes (vocab_size 257, separator 256, vocabulary none)"
std::string tokenizer_text(const SplitIdentity& split);

// Throws a data error if the splits use different tokenizers.
void expect_one_tokenizer(const DataIdentity& data);

// Throws a usage error if a file, or equal content, occurs twice in a split or in both splits.
void expect_no_overlap(const DataIdentity& data);

// Returns the differences, one per string: "data.train: train_000003.bin is here and not there". Compares only hashes
// that both have. `there` is the older identity.
std::vector<std::string> split_differences(const std::string& key, const SplitIdentity& there,
                                           const SplitIdentity& here);
std::vector<std::string> data_differences(const DataIdentity& there, const DataIdentity& here);

// JSON form, as in checkpoint.json and data.json. Reading throws a JsonError for other text.
std::string data_identity_to_json(const DataIdentity& data);
DataIdentity data_identity_from_json(std::string_view text);

}  // namespace speedrun
