#include "data/data_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>

#include "data/sha256.h"
#include "data/shard_listing.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// A shard, and the config list that contains it.
struct Placed {
    const char* key;
    const ShardIdentity* shard;
};

void refuse_overlap(const Placed& one, const Placed& other, const std::string& what) {
    const bool both = one.key != other.key;
    const std::string effect =
        both ? "validation would score text that is trained on" : "its text would count twice";
    const std::string found =
        one.shard->path == other.shard->path
            ? (both ? fmt::format("{} is in data.train and also in data.val", one.shard->path)
                    : fmt::format("{} is twice in {}", one.shard->path, one.key))
            : fmt::format("{} of {} and {} of {} {}", one.shard->path, one.key, other.shard->path, other.key,
                          what);
    throw_usage("{}: {}. Name each shard once, or insist with data.allow_overlap=true", found, effect);
}

std::string hash_text(const ShardIdentity& shard) {
    return shard.sha256.empty() ? "of samples " + shard.sampled_sha256.substr(0, 12)
                                : shard.sha256.substr(0, 12);
}

bool same_content(const ShardIdentity& one, const ShardIdentity& other) {
    const bool both = !one.sha256.empty() && !other.sha256.empty();
    return one.tokens == other.tokens && one.sampled_sha256 == other.sampled_sha256 &&
           (!both || one.sha256 == other.sha256);
}

std::vector<std::string> names_of(const SplitIdentity& split) {
    std::vector<std::string> names;
    for (const ShardIdentity& shard : split.shards) names.push_back(shard.file);
    return names;
}

// Returns the names that occur more often in `in` than in `from`.
std::vector<std::string> missing(std::vector<std::string> from, std::vector<std::string> in) {
    std::sort(from.begin(), from.end());
    std::sort(in.begin(), in.end());
    std::vector<std::string> rest;
    std::set_difference(in.begin(), in.end(), from.begin(), from.end(), std::back_inserter(rest));
    return rest;
}

// "a, b, c and 17 more"
std::string listed(const std::vector<std::string>& names) {
    constexpr size_t kShown = 3;
    const size_t count = std::min(names.size(), kShown);
    const std::string text =
        fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(count), ", "));
    return names.size() > count ? fmt::format("{} and {} more", text, names.size() - count) : text;
}

}  // namespace

bool same_tokenizer(const SplitIdentity& a, const SplitIdentity& b) {
    return a.tokenizer == b.tokenizer && a.vocab_size == b.vocab_size && a.separator == b.separator &&
           a.vocabulary_sha256 == b.vocabulary_sha256;
}

std::string tokenizer_text(const SplitIdentity& split) {
    return fmt::format("{} (vocab_size {}, separator {}, vocabulary {})", split.tokenizer, split.vocab_size,
                       split.separator,
                       split.vocabulary_sha256.empty() ? "none" : split.vocabulary_sha256.substr(0, 12));
}

std::string sampled_sha256(const Shard& shard) {
    constexpr int64_t kBlocks = 4, kBlockBytes = 4096;
    const int64_t bytes = shard.bytes(), last = std::max<int64_t>(0, bytes - kBlockBytes);
    Sha256 hash;
    hash.update(&bytes, sizeof bytes);
    std::array<unsigned char, kBlockBytes> block{};
    for (int64_t i = 0; i < kBlocks; ++i) {
        const int64_t first = last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1);
        const auto count = static_cast<size_t>(std::min(kBlockBytes, bytes - first));
        shard.read_bytes(first, std::span(block).first(count));
        hash.update(block.data(), count);
        if (last == 0) break;  // the first block is the whole file
    }
    return hash.hex();
}

SplitIdentity identify_split(const std::vector<std::string>& files, int64_t hashed_bytes) {
    SplitIdentity split;
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    split.tokenizer = info.tokenizer;
    split.vocabulary_sha256 = info.vocabulary_sha256;
    split.vocab_size = info.vocab_size;
    split.separator = info.separator;
    split.separators = info.separators;
    Listings listings;
    int64_t bytes = 0;
    for (const std::string& file : files) {
        const Shard shard(file);
        const Listings::Entry entry = listings.find(file);
        if (entry.shard && entry.shard->tokens != shard.size())
            throw_data("{}: the header at offset 8 says {} tokens, expected {} ({})", file, shard.size(),
                       entry.shard->tokens, entry.listing->file);
        bytes += shard.bytes();
        split.shards.push_back({.file = std::filesystem::path(file).filename().string(),
                                .tokens = shard.size(),
                                .sha256 = entry.shard ? entry.shard->sha256 : "",
                                .sampled_sha256 = sampled_sha256(shard),
                                .path = file,
                                .id = shard.file_id()});
    }
    split.hashed = bytes <= hashed_bytes;
    if (!split.hashed) return split;
    for (ShardIdentity& shard : split.shards) {
        const std::string actual = sha256_file(shard.path);
        if (!shard.sha256.empty() && shard.sha256 != actual)
            throw_data("{}: damaged, or not the file that {} describes: SHA-256 is {}, expected {}",
                       shard.path, listings.find(shard.path).listing->file, actual, shard.sha256);
        shard.sha256 = actual;
    }
    return split;
}

void expect_one_tokenizer(const DataIdentity& data) {
    if (same_tokenizer(data.train, data.val)) return;
    throw_data(
        "data.train and data.val hold different tokens: {} and {}; a loss over the tokens of another tokenizer has no "
        "meaning. Prepare both with one tokenizer",
        tokenizer_text(data.train), tokenizer_text(data.val));
}

void expect_no_overlap(const DataIdentity& data) {
    std::map<Shard::FileId, Placed> files;
    std::map<std::string, std::vector<Placed>> contents;  // key: sampled_sha256
    for (const auto& [key, split] :
         {std::pair{"data.train", &data.train}, std::pair{"data.val", &data.val}}) {
        for (const ShardIdentity& shard : split->shards) {
            const Placed placed{key, &shard};
            const auto [other, is_new] = files.try_emplace(shard.id, placed);
            if (!is_new) refuse_overlap(other->second, placed, "are one file");
            if (shard.tokens == 0) continue;
            std::vector<Placed>& alike = contents[shard.sampled_sha256];
            for (const Placed& candidate : alike)
                if (same_content(*candidate.shard, shard))
                    refuse_overlap(candidate, placed,
                                   fmt::format("have the same content (SHA-256 {})", hash_text(shard)));
            alike.push_back(placed);
        }
    }
}

std::vector<std::string> split_differences(const std::string& key, const SplitIdentity& there,
                                           const SplitIdentity& here) {
    std::vector<std::string> found;
    const auto add = [&](const std::string& text) { found.push_back(key + ": " + text); };
    if (!same_tokenizer(there, here))
        add(fmt::format("tokens of {} there, of {} here", tokenizer_text(there), tokenizer_text(here)));
    if (there.separators != here.separators) add("separators are stored at another side of their documents");
    const std::vector<std::string> old_names = names_of(there), new_names = names_of(here);
    const std::vector<std::string> gone = missing(new_names, old_names),
                                   added = missing(old_names, new_names);
    if (there.source_shards != here.source_shards)
        add(fmt::format("sources have [{}] shards there, [{}] here", fmt::join(there.source_shards, ", "),
                        fmt::join(here.source_shards, ", ")));
    if (!gone.empty()) add(listed(gone) + " is there and not here");
    if (!added.empty()) add(listed(added) + " is here and not there");
    if (!gone.empty() || !added.empty()) return found;
    if (const auto [a, b] = std::mismatch(old_names.begin(), old_names.end(), new_names.begin());
        a != old_names.end()) {
        add(fmt::format("shards are in another order: number {} is {} there, {} here",
                        a - old_names.begin() + 1, *a, *b));
        return found;
    }
    std::vector<std::string> changed;
    for (size_t i = 0; i < here.shards.size(); ++i) {
        const ShardIdentity &a = there.shards[i], &b = here.shards[i];
        if (a.tokens != b.tokens)
            changed.push_back(fmt::format("{} has {} tokens there, {} here", a.file, a.tokens, b.tokens));
        else if (!same_content(a, b))
            changed.push_back(fmt::format("{} has other content: SHA-256 {} there, {} here", a.file,
                                          hash_text(a), hash_text(b)));
    }
    if (!changed.empty()) add(listed(changed));
    return found;
}

std::vector<std::string> data_differences(const DataIdentity& there, const DataIdentity& here) {
    std::vector<std::string> found = split_differences("data.train", there.train, here.train);
    for (std::string& text : split_differences("data.val", there.val, here.val))
        found.push_back(std::move(text));
    return found;
}

}  // namespace speedrun
