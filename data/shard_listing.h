// Descriptions of shards in their folders: dataset.json, or shards.lock where there is none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/dataset.h"

namespace speedrun {

// The folder of a file, "." for a bare name.
std::string folder_of(const std::string& file);

struct Listing {
    std::string file;  // "dataset.json" or "shards.lock"
    DatasetInfo info;
    std::unordered_map<std::string_view, const ShardInfo*> by_name = {};

    // Null: not listed.
    const ShardInfo* find(const std::string& name) const;
};

// The listing in a folder; null where it has neither file. Throws a data error for one that is damaged.
std::unique_ptr<const Listing> read_listing(const std::string& folder);

// Listings of many shards; each file is read once.
class Listings {
  public:
    struct Entry {
        const Listing* listing = nullptr;  // null: there is none
        const ShardInfo* shard = nullptr;
    };

    // Looks a file up by its name in its folder; a link that is not listed there, by the name and folder of its target. Throws
    // a data error if a folder has a listing without the file. The result lives as long as this object.
    Entry find(const std::string& file);

  private:
    const Listing* in(const std::string& folder);

    std::map<std::string, std::unique_ptr<const Listing>> folders_;
};

}  // namespace speedrun
