// Bytes of a file in order, decompressed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace speedrun {

class ByteSource {
  public:
    virtual ~ByteSource() = default;
    // Fills a part of `out`, and returns its size; 0 at the end. Throws a data error for a file that cannot be read, or
    // has damaged or truncated compressed data.
    virtual size_t read(std::span<char> out) = 0;
};

// Opens a regular file or an anonymous pipe. Data that begin as gzip or Zstandard are decompressed under any
// name; a name with .gz or .zst requires such data. Files of several gzip members or Zstandard frames are read whole.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

}  // namespace speedrun
