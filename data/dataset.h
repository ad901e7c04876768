// dataset.json: the description of the shards in its folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace speedrun {

// Side of a document's text on which its separator is stored: before (FineWeb's published files) or after (prepare). A
// document that is read begins with its separator in both cases, see document_index.h.
enum class SeparatorPlace : uint8_t { before, after };

struct ShardInfo {
    std::string file;    // name within the dataset's folder, no directories
    std::string split;   // "train" or "val"
    int64_t tokens = 0;  // token count
    std::string sha256;  // of the whole file, 64 lower-case hexadecimal digits
};

// The defaults describe shards that come without a dataset.json. They are read as FineWeb's GPT-2 files.
struct DatasetInfo {
    std::string name = "without dataset.json (read as GPT-2 tokens)";
    std::string tokenizer = "gpt2";  // "bytes" or "gpt2"
    int32_t vocab_size = 50257;      // tokens are 0 … vocab_size-1
    int32_t separator = 50256;       // the token that stands between documents
    std::vector<ShardInfo> shards;
    std::string vocabulary_sha256{};  // of the file kVocabularyFile in the folder; empty: there is none
    SeparatorPlace separators = SeparatorPlace::before;
    std::string folder{};  // folder of the dataset.json; empty: there is none
};

// The tokenizer's vocabulary in a dataset's folder: an exact copy of the file that prepare was given.
inline constexpr const char* kVocabularyFile = "vocabulary";

// Reads and checks a dataset.json. One without the key "separators" was written by an older prepare, which stored them after
// documents. Throws a data error that names the file and the offending key.
DatasetInfo read_dataset_info(const std::string& path);

// Writes a dataset.json (temporary file, then rename). Throws a data error if a write fails.
void write_dataset_info(const std::string& path, const DatasetInfo& info);

// The info of the folder that holds these shard files, or nullopt where there is no dataset.json (then a
// default DatasetInfo applies). Throws a data error if the files come from folders that disagree about
// tokenizer, vocabulary, separator or its place, or if a file is not listed in its folder's dataset.json. Does not hash.
std::optional<DatasetInfo> find_dataset_info(const std::vector<std::string>& shard_files);

// The path of the dataset's vocabulary, or "" if it has none. Throws a data error if the file is missing or its hash is not
// the one in dataset.json.
std::string find_vocabulary(const DatasetInfo& info);

// Gives `take` all bytes of a file, in order. Throws a data error with the reason if it cannot be read.
void read_in_pieces(const std::string& path, const std::function<void(const void* data, size_t bytes)>& take);

// SHA-256 of a file's content, 64 lower-case hexadecimal digits. Throws a data error if it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace speedrun
