#include "data/dataset.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>

#include "data/durable_file.h"
#include "data/errno_text.h"
#include "data/json_text.h"
#include "data/open_file.h"
#include "data/sha256.h"
#include "data/shard_listing.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;  // keeps the order of keys, for readers and diffs

template <class T>
T read_key(const Json& object, const char* key, const std::string& where) {
    const auto found = object.find(key);
    if (found == object.end()) throw_data("{}: key '{}' is missing", where, key);
    // Conversion to an integer would drop a fraction, and bits beyond 64.
    const bool fraction = std::is_same_v<T, int64_t> && found->is_number() && !found->is_number_integer();
    const bool too_large = found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX;
    if (fraction || too_large) throw_data("{}: key '{}' has a wrong type: {}", where, key, shown(*found));
    try {
        return found->get<T>();
    } catch (const Json::exception&) {
        throw_data("{}: key '{}' has a wrong type: {}", where, key, shown(*found));
    }
}

ShardInfo read_shard_info(const Json& object, const std::string& where) {
    if (!object.is_object()) throw_data("{}: expected an object, found {}", where, shown(object));
    ShardInfo shard;
    shard.file = read_key<std::string>(object, "file", where);
    shard.split = read_key<std::string>(object, "split", where);
    shard.tokens = read_key<int64_t>(object, "tokens", where);
    shard.sha256 = read_key<std::string>(object, "sha256", where);
    if (shard.split != "train" && shard.split != "val") {
        throw_data("{}: split is '{}', expected 'train' or 'val'", where, shard.split);
    }
    if (shard.file.empty() || shard.file.find('/') != std::string::npos || shard.file == "..") {
        throw_data("{}: file is '{}', expected the name of a file in this folder", where, shard.file);
    }
    if (shard.tokens < 0) throw_data("{}: tokens is {}, expected 0 or more", where, shard.tokens);
    return shard;
}

std::string short_hash(const DatasetInfo& info) {
    return info.vocabulary_sha256.empty() ? "none" : info.vocabulary_sha256.substr(0, 12);
}

const char* word_of(SeparatorPosition place) {
    return place == SeparatorPosition::before ? "before" : "after";
}

SeparatorPosition read_separators(const Json& root, const std::string& path) {
    if (!root.contains("separators")) return SeparatorPosition::after;
    const auto word = read_key<std::string>(root, "separators", path);
    for (const SeparatorPosition place : {SeparatorPosition::before, SeparatorPosition::after})
        if (word == word_of(place)) return place;
    throw_data("{}: separators is '{}', expected 'before' or 'after' (the text of their documents)", path,
               word);
}

struct TokensOf {
    std::string folder;
    const DatasetInfo* info;
};

void expect_same_tokenizer(const TokensOf& one, const TokensOf& other) {
    const DatasetInfo &a = *one.info, &b = *other.info;
    if (a.tokenizer == b.tokenizer && a.vocab_size == b.vocab_size && a.separator == b.separator &&
        a.vocabulary_sha256 == b.vocabulary_sha256)
        return;
    throw_data(
        "{} and {} hold different tokens: {} (vocab_size {}, separator {}, vocabulary {}) and {} ({}, {}, {})",
        one.folder, other.folder, a.tokenizer, a.vocab_size, a.separator, short_hash(a), b.tokenizer,
        b.vocab_size, b.separator, short_hash(b));
}

}  // namespace

DatasetInfo read_dataset_info(const std::string& path) {
    Json root;
    try {
        root = parse_json<Json>(read_text_file(path));
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path, error.what());
    }
    if (!root.is_object()) throw_data("{}: expected a JSON object at the top", path);
    DatasetInfo info;
    info.name = read_key<std::string>(root, "name", path);
    info.tokenizer = read_key<std::string>(root, "tokenizer", path);
    const auto vocab_size = read_key<int64_t>(root, "vocab_size", path);
    const auto separator = read_key<int64_t>(root, "separator", path);
    constexpr int64_t kMaxVocab = std::numeric_limits<uint16_t>::max() + 1;
    if (vocab_size < 1 || vocab_size > kMaxVocab) {
        throw_data("{}: vocab_size is {}, expected 1 to {} (tokens are uint16)", path, vocab_size, kMaxVocab);
    }
    if (separator < 0 || separator >= vocab_size) {
        throw_data("{}: separator is {}, expected 0 to vocab_size-1 = {}", path, separator, vocab_size - 1);
    }
    info.vocab_size = static_cast<int32_t>(vocab_size);
    info.separator = static_cast<int32_t>(separator);
    info.separators = read_separators(root, path);
    info.folder = folder_of(path);
    if (root.contains("vocabulary_sha256"))
        info.vocabulary_sha256 = read_key<std::string>(root, "vocabulary_sha256", path);
    const auto shards = read_key<Json>(root, "shards", path);
    if (!shards.is_array()) throw_data("{}: key 'shards' has a wrong type: {}", path, shown(shards));
    for (size_t i = 0; i < shards.size(); ++i) {
        info.shards.push_back(read_shard_info(shards[i], fmt::format("{}: shards[{}]", path, i)));
    }
    return info;
}

void write_dataset_info(const std::string& path, const DatasetInfo& info) {
    Json root = {{"name", info.name},
                 {"tokenizer", info.tokenizer},
                 {"vocab_size", info.vocab_size},
                 {"separator", info.separator},
                 {"separators", word_of(info.separators)}};
    if (!info.vocabulary_sha256.empty()) root["vocabulary_sha256"] = info.vocabulary_sha256;
    root["shards"] = Json::array();
    for (const ShardInfo& shard : info.shards) {
        root["shards"].push_back({{"file", shard.file},
                                  {"split", shard.split},
                                  {"tokens", shard.tokens},
                                  {"sha256", shard.sha256}});
    }
    write_file(path, root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", OutputFile::Path::own);
}

std::optional<DatasetInfo> find_dataset_info(const std::vector<std::string>& shard_files) {
    Listings listings;
    const DatasetInfo unlisted;
    std::vector<TokensOf> found;
    for (const std::string& file : shard_files) {
        const Listing* listing = listings.find(file).listing;
        const DatasetInfo* info = listing ? &listing->info : &unlisted;
        const auto same = [&](const TokensOf& other) { return other.info == info; };
        if (std::none_of(found.begin(), found.end(), same)) found.push_back({folder_of(file), info});
    }
    for (const TokensOf& other : found) {
        const TokensOf& first = found.front();
        expect_same_tokenizer(first, other);
        if (other.info->separators != first.info->separators)
            throw_data(
                "{} and {} store separators at different places: {} and {} the text of their documents",
                first.folder, other.folder, word_of(first.info->separators), word_of(other.info->separators));
    }
    if (found.empty() || found.front().info == &unlisted) return std::nullopt;
    return *found.front().info;
}

std::string find_vocabulary(const DatasetInfo& info) {
    if (info.vocabulary_sha256.empty()) return "";
    const std::string path = (fs::path(info.folder) / kVocabularyFile).string();
    const std::string actual = sha256_file(path);
    if (actual != info.vocabulary_sha256) {
        throw_data("{}: SHA-256 is {}, expected {} (dataset.json)", path, actual, info.vocabulary_sha256);
    }
    return path;
}

void read_in_pieces(const std::string& path, const std::function<void(const void*, size_t)>& take) {
    expect_regular_file(path);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) throw_data("{}: cannot open: {}", path, errno_text());
    std::vector<unsigned char> buffer(1 << 20);
    while (const size_t bytes = std::fread(buffer.data(), 1, buffer.size(), file.get()))
        take(buffer.data(), bytes);
    if (std::ferror(file.get())) throw_data("{}: read failed: {}", path, errno_text());
}

std::string sha256_file(const std::string& path) {
    Sha256 hash;
    read_in_pieces(path, [&](const void* data, size_t bytes) { hash.update(data, bytes); });
    return hash.hex();
}

}  // namespace speedrun
