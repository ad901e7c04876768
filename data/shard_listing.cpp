#include "data/shard_listing.h"

#include <filesystem>
#include <system_error>

#include "data/shard_lock.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& file) {
    return fs::path(file).filename().string();
}

}  // namespace

std::string folder_of(const std::string& file) {
    const fs::path parent = fs::path(file).parent_path();
    return parent.empty() ? "." : parent.string();
}

const ShardInfo* Listing::find(const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
}

std::unique_ptr<const Listing> read_listing(const std::string& folder) {
    const fs::path json = fs::path(folder) / "dataset.json", lock = fs::path(folder) / kShardLock;
    std::error_code ignored;  // an unreadable folder fails when its shard is opened
    auto listing = std::make_unique<Listing>();
    if (fs::exists(json, ignored)) {
        listing->file = "dataset.json";
        listing->info = read_dataset_info(json.string());
    } else if (fs::exists(lock, ignored)) {
        listing->file = kShardLock;
        listing->info.name = name_of(fs::weakly_canonical(folder).string());
        listing->info.shards = read_shard_lock(lock.string());
    } else {
        return nullptr;
    }
    for (const ShardInfo& shard : listing->info.shards) listing->by_name.emplace(shard.file, &shard);
    return listing;
}

const Listing* Listings::in(const std::string& folder) {
    const auto [entry, is_new] = folders_.try_emplace(folder);
    if (is_new) entry->second = read_listing(folder);
    return entry->second.get();
}

Listings::Entry Listings::find(const std::string& file) {
    const Listing* listing = in(folder_of(file));
    std::string folder = folder_of(file);
    if (listing)
        if (const ShardInfo* shard = listing->find(name_of(file))) return {listing, shard};
    std::error_code error;
    if (fs::is_symlink(file, error)) {
        const std::string target = fs::canonical(file, error).string();
        const Listing* there = error ? nullptr : in(folder_of(target));
        if (there) {
            listing = there;
            folder = folder_of(target);
            if (const ShardInfo* shard = there->find(name_of(target))) return {there, shard};
        }
    }
    if (listing)
        throw_data("{}: not listed in {}/{}, so its tokenizer is unknown", file, folder, listing->file);
    return {};
}

}  // namespace speedrun
