// dataset.json: description of the shards in its folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace speedrun {

// Side of a document on which its separator is stored: before (FineWeb's published files) or after (prepare). A
// document as read begins with its separator in both cases, see document_index.h.
enum class SeparatorPosition : uint8_t { before, after };

struct ShardInfo {
    std::string file;    // name in the dataset's folder, without directories
    std::string split;   // "train" or "val"
    int64_t tokens = 0;  // token count
    std::string sha256;  // SHA-256 of the whole file, 64 lower-case hexadecimal digits
};

// Defaults describe shards without a dataset.json, which are read as FineWeb's GPT-2 files.
struct DatasetInfo {
    std::string name = "without dataset.json (read as GPT-2 tokens)";
    std::string tokenizer = "gpt2";  // "bytes" or "gpt2"
    int32_t vocab_size = 50257;      // tokens are 0 … vocab_size-1
    int32_t separator = 50256;       // token between documents
    std::vector<ShardInfo> shards;
    std::string vocabulary_sha256{};  // SHA-256 of kVocabularyFile in the folder; empty: no such file
    SeparatorPosition separators = SeparatorPosition::before;
    std::string folder{};  // folder of dataset.json; empty: no such file
};

// File name of the tokenizer's vocabulary in a dataset's folder: an exact copy of the file passed to prepare.
inline constexpr const char* kVocabularyFile = "vocabulary";

// Reads and checks a dataset.json. Without the key "separators" (written by an older prepare) they are stored after
// documents. Throws a data error that names the file and the offending key.
DatasetInfo read_dataset_info(const std::string& path);

// Writes a dataset.json (temporary file, then rename). Throws a data error if a write fails.
void write_dataset_info(const std::string& path, const DatasetInfo& info);

// Returns the info of the folder with these shard files; nullopt without a dataset.json (use a default DatasetInfo).
// Throws a data error if folders disagree about tokenizer, vocabulary, separator or its side, or if a file is not in
// its folder's dataset.json. Computes no hash.
std::optional<DatasetInfo> find_dataset_info(const std::vector<std::string>& shard_files);

// Returns the path of the dataset's vocabulary, or "" if it has none. Throws a data error if the file is missing or its
// hash differs from dataset.json.
std::string find_vocabulary(const DatasetInfo& info);

// Passes all bytes of a file to `take`, in order. Throws a data error with the reason if it cannot be read.
void read_in_pieces(const std::string& path, const std::function<void(const void* data, size_t bytes)>& take);

// Returns the SHA-256 of a file, 64 lower-case hexadecimal digits. Throws a data error if it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace speedrun
