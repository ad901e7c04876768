// Token shard files, in the layout of the community's FineWeb GPT-2 files:
//   int32 header[256]  // magic 20240520, version 1, token count, zeros
//   uint16 tokens[count]
// Everything is little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace speedrun {

inline constexpr int32_t kShardMagic = 20240520;
inline constexpr int32_t kShardVersion = 1;
inline constexpr int64_t kShardHeaderBytes = int64_t{256} * 4;

// A shard mapped read-only into memory for as long as the object lives. Reading is safe from many threads.
// The file must not shrink while it is mapped: touching a page past its end kills the process (SIGBUS).
class Shard {
  public:
    // Maps and validates the file; reads nothing but the header. Throws a data error that names the file, the
    // byte offset, and the expected and actual value if the file is absent, its header is wrong, or its size
    // is not exactly 1024 + 2 * count.
    explicit Shard(const std::string& path);
    ~Shard();
    Shard(Shard&& other) noexcept;
    Shard& operator=(Shard&& other) noexcept;
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    const std::string& path() const { return path_; }
    int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  // tokens
    std::span<const uint16_t> tokens() const { return tokens_; }           // (size)

    // Asks the kernel to start reading the whole file; returns at once.
    void will_need() const;

  private:
    void unmap() noexcept;

    std::string path_;
    void* mapping_ = nullptr;
    size_t mapped_bytes_ = 0;
    std::span<const uint16_t> tokens_;
};

// Writes a shard so that `path` either keeps its old content or holds the complete new one, even across a
// power cut: the bytes go to `path`.tmp, are synced, and the file is renamed. Throws a data error that names
// the file and the failed call; the temporary file is then removed.
void write_shard(const std::string& path, std::span<const uint16_t> tokens);

}  // namespace speedrun
