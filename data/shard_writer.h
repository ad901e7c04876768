// Writes the tokens of one split as shards.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace speedrun {

// Files SPLIT_000000.bin … of shard_tokens tokens in a folder; the last one may be shorter. Memory: one buffer.
class ShardWriter {
  public:
    struct Place {
        std::string folder;
        std::string split;
    };
    ShardWriter(Place place, int64_t shard_tokens);

    void append(std::span<const uint16_t> tokens);
    // Completes the last file. Returns the shards, synced to disk.
    std::vector<ShardInfo> finish();

  private:
    std::string path() const;
    void begin();
    void complete();
    void write(std::span<const uint16_t> tokens);

    const Place place_;
    const int64_t limit_;
    std::string file_name_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;  // null: no shard begun
    int64_t written_ = 0;                                   // tokens in the file
    std::vector<ShardInfo> shards_;
};

}  // namespace speedrun
