// Descriptions of shards in their folders: dataset.json, or shards.lock without one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/dataset.h"

namespace speedrun {

// Returns the folder of a file, "." for a bare name.
std::string folder_of(const std::string& file);

struct Listing {
    std::string file;  // "dataset.json" or "shards.lock"
    DatasetInfo info;
    std::unordered_map<std::string_view, const ShardInfo*> by_name = {};

    // Returns null if the name is not listed.
    const ShardInfo* find(const std::string& name) const;
};

// Reads the listing in a folder; null without either file. Throws a data error if it is damaged.
std::unique_ptr<const Listing> read_listing(const std::string& folder);

// Listings of many shards; reads each file once.
class Listings {
  public:
    struct Entry {
        const Listing* listing = nullptr;  // null: there is none
        const ShardInfo* shard = nullptr;
    };

    // Looks up a file by name in its folder. If a link is not listed there, it is looked up by name and folder of its
    // target. Throws a data error if a folder has a listing without the file. The result is valid as long as this
    // object.
    Entry find(const std::string& file);

  private:
    const Listing* in(const std::string& folder);

    std::map<std::string, std::unique_ptr<const Listing>> folders_;
};

}  // namespace speedrun
