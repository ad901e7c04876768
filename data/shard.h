// Token shard files, in the layout of the community's FineWeb GPT-2 files:
//   int32 header[256]  // magic 20240520, version 1, token count, zeros
//   uint16 tokens[count]
// All values are little endian.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace speedrun {

inline constexpr int32_t kShardMagic = 20240520;
inline constexpr int32_t kShardVersion = 1;
inline constexpr int64_t kShardHeaderBytes = int64_t{256} * 4;

// A shard file as it was when opened. Every read checks that size and modification time are unchanged: a changed file
// is a data error, not wrong tokens. Safe for concurrent reads.
//
// The file stays open, so a run continues if the file is deleted or replaced by a rename. Beyond half of the process's
// descriptor limit (ulimit -n), shards are instead opened for each read and must stay in place.
class Shard {
  public:
    // Reads and validates the header. Throws a data error if the file is missing, its header is wrong, or its size is
    // not 1024 + 2 * count. The error names file, byte offset, expected and actual value.
    explicit Shard(const std::string& path);
    ~Shard();
    Shard(Shard&& other) noexcept;
    Shard& operator=(Shard&& other) noexcept;
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    const std::string& path() const { return path_; }
    int64_t size() const { return size_; }  // tokens
    int64_t bytes() const { return kShardHeaderBytes + 2 * size_; }

    // Reads tokens first … first+out.size()-1. Throws a data error that names the file if it changed or cannot be read;
    // an internal error if the range exceeds the shard.
    void read(int64_t first, std::span<uint16_t> out) const;
    // Reads bytes of the file, header included. Throws as read().
    void read_bytes(int64_t first, std::span<unsigned char> out) const;
    std::vector<uint16_t> read_all() const;

    // Equal for all paths of one file.
    struct FileId {
        uint64_t device = 0, inode = 0;
        auto operator<=>(const FileId&) const = default;
    };
    const FileId& file_id() const { return version_.id; }

    // Asks the kernel to read the whole file ahead; returns immediately.
    void will_need() const;

  private:
    // Identifies a file and a state of its content.
    struct Version {
        FileId id;
        int64_t bytes = 0, modified_s = 0, modified_ns = 0;
        bool operator==(const Version&) const = default;
    };

    static Version version_of(int file, const std::string& path);
    void expect_unchanged(int file) const;
    void close() noexcept;

    std::string path_;
    int64_t size_ = 0;
    Version version_;
    int file_ = -1;  // -1: opened for each read
};

// Writes a shard by OutputFile: after a failure or a power cut, `path` has its old content or the complete new one.
void write_shard(const std::string& path, std::span<const uint16_t> tokens);

}  // namespace speedrun
